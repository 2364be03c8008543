"""The public face of what is known: everything that other packages may ask of incidents.

Only these functions write; each says what it did as values.
"""

from __future__ import annotations

from incidents.acting import act, record
from incidents.changes import Acted, Change, ChangeKind, Refused
from incidents.ingesting import ingest

__all__ = ["Acted", "Change", "ChangeKind", "Refused", "act", "ingest", "record"]
