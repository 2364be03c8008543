"""Which kind of value each field of the catalogue's rows has, by table. Python 3.9."""

from __future__ import annotations

from collections.abc import Mapping

from detectors.catalog.rows import COUNT, FLAG, NAMES, NUMBER, TEXT, TEXTS, Shape

_TYPE: Mapping[str, Shape] = {
    "id": TEXT,
    "title": TEXT,
    "component": TEXT,
    "event_type": TEXT,
    "severity": TEXT,
    "action": TEXT,
    "clears": TEXT,
    "meaning": TEXT,
    "source": TEXT,
    "fitness": TEXT,
    "quiet": TEXT,
    "hold_down": TEXT,
    "code": COUNT,
    "family": TEXT,
    "is_sympathetic": FLAG,
    "is_fatal": FLAG,
    "confirmed_by": NAMES,
    "flap_start": NUMBER,
    "flap_stop": NUMBER,
    "flap_look": TEXT,
}
_SIGNATURE: Mapping[str, Shape] = {
    "type": TEXTS,
    "event": TEXT,
    "pattern": TEXTS,
    "on": TEXT,
    "program": TEXTS,
    "facility": TEXTS,
    "begins": TEXT,
    "unless": TEXT,
    "qualifier": TEXTS,
    "scan": TEXT,
}
_GRAMMAR: Mapping[str, Shape] = {
    "type": TEXTS,
    "subject": NAMES,
    "fails": NAMES,
    "clears": NAMES,
    "says_fails": NAMES,
    "says_clears": NAMES,
    "source": TEXT,
    "on_port": FLAG,
}
_HARMLESS: Mapping[str, Shape] = {
    "pattern": TEXTS,
    "program": TEXTS,
    "facility": TEXTS,
    "reason": TEXT,
    "source": TEXT,
}
# Fields that are not named here are checked where they are read.
BY_TABLE: Mapping[str, Mapping[str, Shape]] = {
    "type": _TYPE,
    "signature": _SIGNATURE,
    "grammar": _GRAMMAR,
    "rule": {"metric": TEXT, "type": TEXT, "when": TEXT, "source": TEXT},
    "grace": {"period": TEXT, "source": TEXT},
    "harmless": _HARMLESS,
    "advice": {"text": TEXT, "url": TEXT, "source": TEXT},
    "drain": {"type": TEXT, "source": TEXT},
    "vendor_catalog": {"family": TEXT, "name": TEXT, "source": TEXT},
}
