"""When each target is polled next, and what its last poll saw."""
