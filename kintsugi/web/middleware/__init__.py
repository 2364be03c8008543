"""What stands around every request: probes, the database's absence, headers."""
