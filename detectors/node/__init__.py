"""Detectors that look at a node, one a file."""
