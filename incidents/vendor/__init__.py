"""Vendor cases: evidence, moves, deadlines."""
