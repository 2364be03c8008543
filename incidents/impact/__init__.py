"""What an incident costs: lost jobs, GPU hours, capacity."""
