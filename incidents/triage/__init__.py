"""From fault events to incidents: ingest and the sweep."""
