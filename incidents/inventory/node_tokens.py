"""The tokens with which nodes' own checks speak, each for its node alone: made, found, revoked.
Alone writes `NodeToken`."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from incidents.models import Node, NodeToken
from incidents.vocabulary.changes import Refused

# GitHub's fine-grained tokens and Azure's application secrets end after a year at most when nobody
# says more.
LASTS = timedelta(days=365)
# How long those of before go on after a rotation: a node that is down for a week is found anyway.
OVERLAP = timedelta(days=7)
_PREFIX = "kintsugi_"
_USED_AGAIN = timedelta(minutes=1)


def compute_digest(token: str) -> str:
    """What is stored of a token. A plain hash: nobody guesses 256 random bits."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def create(node: Node, *, lasts: timedelta, actor: str, now: datetime) -> str:
    """A new token, which is shown this once. Those of before stay valid."""
    token = _PREFIX + secrets.token_urlsafe(32)
    _insert(node, token, lasts=lasts, actor=actor, now=now)
    return token


def end_earlier(node: Node, *, now: datetime) -> int:
    """After a rotation: those of before end after the overlap. How many do."""
    until = now + OVERLAP
    earlier = NodeToken.objects.filter(node=node, created_at__lt=now, revoked_at=None)
    return earlier.filter(expires_at__gt=until).update(expires_at=until)


def adopt(node: Node, token: str, *, lasts: timedelta, now: datetime) -> NodeToken:
    """A token of the form before as a row of its own, so that it expires and can be revoked."""
    return _insert(node, token, lasts=lasts, actor="of the form before", now=now)


def _insert(node: Node, token: str, *, lasts: timedelta, actor: str, now: datetime) -> NodeToken:
    columns = {
        "node": node,
        "created_at": now,
        "created_by": actor[:150],
        "expires_at": now + lasts,
    }
    row, _ = NodeToken.objects.get_or_create(digest=compute_digest(token), defaults=columns)
    return row


def find(token: str) -> NodeToken | None:
    """Its row, valid or not."""
    return NodeToken.objects.select_related("node").filter(digest=compute_digest(token)).first()


def find_problem(row: NodeToken, now: datetime) -> str:
    """Why the token is not taken, as a sentence; empty for a valid one."""
    if row.revoked_at is not None:
        return f"{row} was revoked at {row.revoked_at:%Y-%m-%d %H:%M %Z} by {row.revoked_by}"
    if row.expires_at <= now:
        return f"{row} ended at {row.expires_at:%Y-%m-%d %H:%M %Z}"
    return ""


def record_use(row: NodeToken, *, address: str, now: datetime) -> None:
    """When and from where it was used, to the minute."""
    is_older = Q(last_used_at=None) | Q(last_used_at__lt=now - _USED_AGAIN)
    used = NodeToken.objects.filter(is_older, pk=row.pk)
    used.update(last_used_at=now, last_address=address[:45])


def revoke(pk: int, *, actor: str, now: datetime) -> NodeToken | Refused:
    """From now on it is refused."""
    changed = NodeToken.objects.filter(pk=pk, revoked_at=None).update(
        revoked_at=now, revoked_by=actor[:150]
    )
    row = NodeToken.objects.select_related("node").filter(pk=pk).first()
    if row is None:
        return Refused(f"There is no token {pk}.")
    return row if changed else Refused(find_problem(row, now) + ".")


def get_valid(now: datetime, nodes: Collection[str] | None = None) -> QuerySet[NodeToken]:
    """Those that are taken now, of these nodes or of all."""
    rows = NodeToken.objects.filter(revoked_at=None, expires_at__gt=now).select_related("node")
    return rows if nodes is None else rows.filter(node__name__in=nodes)


def get_known_nodes(names: Sequence[str]) -> dict[str, Node]:
    """The nodes of the inventory with these names."""
    return {node.name: node for node in Node.objects.inventoried().filter(name__in=names)}
