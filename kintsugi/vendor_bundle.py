"""The evidence of a vendor case as one archive: what incidents and runs know, and what the machine
shows now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings

from detectors.detector import Shell
from incidents.inventory import services
from incidents.models import VendorCase
from incidents.text import archive
from incidents.text.archive import Piece
from incidents.vendor import evidence, inspection
from incidents.vocabulary.changes import Refused
from kintsugi.configuration.config import KEYS
from runbooks.models import CureAttempt, Run

_OURS = "Kintsugi"


@dataclass(frozen=True)
class Bundle:
    """`name` is the file's; the same case always gives the same."""

    name: str
    content: bytes


def collect(
    case_id: int, *, shell: Shell, now: datetime, field_diagnostics: str = ""
) -> Bundle | Refused:
    """Looks at the machine once and packs everything. What cannot be had is named in its
    MANIFEST.txt."""
    case = VendorCase.objects.select_related("incident", "node").filter(pk=case_id).first()
    if case is None:
        return Refused(f"There is no vendor case {case_id}.")
    target = services.get_target(case.node.name) if case.node is not None else None
    pattern = field_diagnostics or settings.KINTSUGI["KINTSUGI_FIELD_DIAGNOSTICS"] or ""
    pieces = [
        *evidence.list_pieces(case),
        *_iterate_run_pieces(case),
        *inspection.read_pieces(target, shell, field_diagnostics=pattern),
    ]
    folder = f"kintsugi-case-{case.pk}"
    content = archive.pack(folder, pieces, at=now, secrets=_list_secrets())
    return Bundle(f"{folder}.tar.gz", content)


def _iterate_run_pieces(case: VendorCase) -> Iterable[Piece]:
    """What was tried on the part, and what the steps of this incident's runs saw."""
    tried = CureAttempt.objects.filter(resource=case.resource).order_by("pk")
    lines = evidence.format_lines((row.tried_at, _format_cure(row)) for row in tried)
    yield Piece("repairs-tried.txt", _OURS, ("\n".join(lines) + "\n").encode())
    for run in Run.objects.filter(incident_id=case.incident_id).order_by("pk"):
        for step in run.steps.order_by("pk"):
            for name, text in sorted(step.evidence.items()):
                safe = "".join(
                    letter if letter.isalnum() or letter in "-_." else "_" for letter in name
                )[:64]
                path = f"runs/{run.pk}-{step.index}-{step.name}-{step.pk}-{safe}.txt"
                yield Piece(path, f"run {run.pk}, step {step.name}", f"{text}\n".encode())


def _format_cure(row: CureAttempt) -> str:
    outcome = {True: "cured", False: "not cured", None: "not known yet"}[row.has_cured]
    return (
        f"{row.rung} for {row.fault_type} on serial {row.serial or 'not known'}: {outcome}."
        f" {row.why}".rstrip()
    )


def _list_secrets() -> list[str]:
    """Of our own settings, and of the groups of KINTSUGI_CREDENTIALS as far as this process reads
    them: none may leave in an archive, wherever it was printed."""
    values: Mapping[str, Any] = settings.KINTSUGI
    own = [str(values[key.name]) for key in KEYS if key.is_secret and values[key.name]]
    path = values["KINTSUGI_CREDENTIALS"]
    if not path:
        return own
    from kintsugi.clients import credentials  # noqa: PLC0415  (only a site that has the file reads it)

    loaded = credentials.load(path, with_bmc=bool(values["KINTSUGI_ACTS"]))
    return [*own, *loaded.list_secrets()]
