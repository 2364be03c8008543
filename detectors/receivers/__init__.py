"""Receivers: the doors through which signals are pushed to us."""
