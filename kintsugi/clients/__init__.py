"""The clients of the world, built from the settings."""
