"""A runbook as a value: its file, its steps, its level, its limits. Pure."""
