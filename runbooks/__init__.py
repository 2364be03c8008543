"""Act: steps, guards, policy, durable runs. Never a sleep in a worker."""
