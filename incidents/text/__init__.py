"""Texts about incidents for people. Pure."""
