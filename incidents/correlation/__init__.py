"""Which faults belong together: rules, relations, candidates."""
