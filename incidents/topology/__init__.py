"""The site as it is declared and wired. Pure."""
