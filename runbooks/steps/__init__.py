"""The steps of runbooks, one class each."""
