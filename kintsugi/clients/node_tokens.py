"""The token with which a node's own check speaks for that node."""

from __future__ import annotations

from django.utils.crypto import salted_hmac

from detectors import resources

_SALT = "kintsugi.node-check"


def token(node: str) -> str:
    """The bearer token of one node: no other node can use it, and it changes with
    KINTSUGI_SECRET_KEY."""
    return salted_hmac(_SALT, resources.short_host(node), algorithm="sha256").hexdigest()
