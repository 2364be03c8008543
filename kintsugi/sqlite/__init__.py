"""The embedded database's engine: Django's own for SQLite, with turns for writers and a file that
only we can read."""
