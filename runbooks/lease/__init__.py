"""Who works on a run: leases and their heartbeat."""
