"""The inventory: what should be there, how it is cabled, which part is in which slot."""
