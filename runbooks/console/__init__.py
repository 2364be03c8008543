"""The console's pages of runs."""
