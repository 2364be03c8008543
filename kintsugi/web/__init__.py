"""Pages that see incidents and runs together, and the API of node checks."""
