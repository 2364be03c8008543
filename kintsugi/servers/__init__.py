"""Processes that serve: the receiver, all in one, the checks before both."""
