"""The engine: a turn of a run, its guards, its results."""
