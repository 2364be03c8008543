"""What the guards are told of the fleet, and the breaker."""
