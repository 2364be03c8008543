"""The catalogue of fault types: its TOML files, their reader, and what Xid lines decode to."""
