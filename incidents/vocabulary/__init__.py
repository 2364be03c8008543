"""The closed sets and values that everything else speaks in. Pure."""
