"""Slurm's jobs as they are kept, and which ran where."""
