"""Slack: how an incident reads there, and the client that says it."""
