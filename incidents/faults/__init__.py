"""One fault by itself: its fingerprint, its repeats, its clock. Pure."""
