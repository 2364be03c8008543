"""Plays of a small site from a seed: the product's own code between a Slurm in memory and actors
whose order a seed chooses."""
