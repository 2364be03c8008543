"""Figures over many incidents, from the tables."""
