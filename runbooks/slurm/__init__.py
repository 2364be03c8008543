"""Slurm: the Protocol, the client that drives its programs, its states."""
