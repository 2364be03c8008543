"""Faults and incidents as one transaction reads and writes them."""
