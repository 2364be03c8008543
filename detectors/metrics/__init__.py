"""Metrics: the exposition format, query APIs, DCGM fields."""
