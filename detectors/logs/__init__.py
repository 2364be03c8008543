"""From log lines to facts: headers, patterns, signatures."""
