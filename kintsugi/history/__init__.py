"""What has ended long ago: written to files, and then removed from the database."""
