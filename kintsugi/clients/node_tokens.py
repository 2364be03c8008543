"""The tokens with which nodes' own checks speak: who creates and revokes them stands in the audit
log, and what a request brought is looked up."""

from __future__ import annotations

import hmac
import logging
import re
from datetime import datetime, timedelta

from django.db import transaction
from django.utils.crypto import salted_hmac

from detectors import resources
from incidents.inventory import node_tokens
from incidents.models import Node, NodeToken
from incidents.vocabulary.changes import Refused
from runbooks.engine import audit

_log = logging.getLogger(__name__)
_ACT = "node_token"
_SALT = "kintsugi.node-check"
_OF_BEFORE = re.compile(r"[0-9a-f]{64}")
# A token of the form before goes on for a quarter from its next use: time to give each node one of
# its own. The next version takes none of them.
_OF_BEFORE_LASTS = timedelta(days=90)


def create(
    nodes: list[Node], *, lasts: timedelta, is_rotation: bool, actor: str, now: datetime
) -> list[tuple[Node, str]]:
    """A new token for each, shown this once; with `is_rotation` those of before end a week on."""
    created = []
    with transaction.atomic():
        for node in nodes:
            token = node_tokens.create(node, lasts=lasts, actor=actor, now=now)
            ending = node_tokens.end_earlier(node, now=now) if is_rotation else 0
            text = f"A token of {node.name} that ends {now + lasts:%Y-%m-%d}."
            if ending:
                overlap_ends_at = now + node_tokens.OVERLAP
                text = f"{text} {ending} of before end {overlap_ends_at:%Y-%m-%d}."
            audit.record_person(actor, _ACT, text, now=now)
            created.append((node, token))
    return created


def revoke(pk: int, *, actor: str, now: datetime) -> str | Refused:
    """A sentence that says which is revoked."""
    with transaction.atomic():
        row = node_tokens.revoke(pk, actor=actor, now=now)
        if isinstance(row, Refused):
            return row
        text = f"{_capitalize(str(row))} is revoked."
        audit.record_person(actor, _ACT, text, now=now)
    return text


def revoke_all(node: Node, *, actor: str, now: datetime) -> list[str]:
    """All of a node's, the one of the form before included, which may have no row yet."""
    node_tokens.adopt(node, compute_derived_token(node.name), lasts=_OF_BEFORE_LASTS, now=now)
    rows = list(node_tokens.get_valid(now, [node.name]))
    answers = [revoke(row.pk, actor=actor, now=now) for row in rows]
    return [answer for answer in answers if isinstance(answer, str)]


def may_be_of_before(token: str) -> bool:
    """By its form: of which node it is only the node's name tells."""
    return _OF_BEFORE.fullmatch(token) is not None


def adopt(token: str, node: str, now: datetime) -> NodeToken | None:
    """The row of a token of the form before, made at its first use; None where it is not that of
    the node."""
    if not hmac.compare_digest(token.encode(), compute_derived_token(node).encode()):
        return None
    known = Node.objects.inventoried().filter(name=node).first()
    if known is None:
        return None
    _log.warning(
        "%s uses a token of the form before, which ends in %s days and which the next version does"
        " not take: `kintsugi node token %s` makes it a new one",
        *(node, _OF_BEFORE_LASTS.days, node),
    )
    return node_tokens.adopt(known, token, lasts=_OF_BEFORE_LASTS, now=now)


def compute_derived_token(node: str) -> str:
    """The form before: computed of KINTSUGI_SECRET_KEY and the node's name, without an end."""
    return salted_hmac(_SALT, resources.short_host(node), algorithm="sha256").hexdigest()


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
