"""A second person confirms what one person has asked for."""
