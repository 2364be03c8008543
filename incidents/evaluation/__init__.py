"""What follows from rules and values: impact, reach, windows. Pure."""
