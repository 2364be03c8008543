"""Slack as a channel: blocks, client, errors."""
