"""Notifications: rows written before they are sent, and the services that send them."""
