"""The console's pages and forms of incidents."""
