"""Conclusions from many observations: cables, rails, silent detectors, our own overload."""
