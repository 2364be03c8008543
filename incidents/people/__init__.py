"""What people do to incidents and what they are told of them."""
