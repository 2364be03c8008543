"""Settings: the table of them, their files, and whether the tables fit this version."""
