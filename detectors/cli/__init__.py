"""Commands for people: explain, parse, the node check, captures."""
