"""Detectors that ask Slurm, and what its programs print."""
