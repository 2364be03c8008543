"""Statements for the hot paths: compiled queries and upserts."""
