"""Plays a site's own logs and days through the real pipeline, on a temporary database and a virtual
clock."""
