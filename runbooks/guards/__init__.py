"""What may be done to the fleet right now."""
