"""Silences and maintenance windows, ours and those of Slurm."""
