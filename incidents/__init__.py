"""Remember: inventory, faults, incidents, timeline, messages, statistics. Never a word of Slurm or
power control."""
