"""The rules in force here: those that ship, with those of this site's folder (KINTSUGI_CORRELATION)
before them."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings

from incidents.correlation import aggregation_rules, rule_file
from incidents.correlation.aggregation_rules import AggregationRule
from incidents.correlation.rules import RuleSet


def load_joining_rules() -> RuleSet:
    """Which faults explain which. Raises CorrelationError; read once per process and folder."""
    return rule_file.load(*_list_folders())


def load_counting_rules() -> tuple[AggregationRule, ...]:
    """What many faults together conclude, in order. Raises GatherError; read once per process and
    folder."""
    return aggregation_rules.load(*_list_folders())


def get_types_counted_by_job() -> frozenset[str]:
    """The fault types of which each sighting counts, and not only the fault."""
    return aggregation_rules.get_types_by_time(*_list_folders())


def _list_folders() -> tuple[Path, ...]:
    folder: Path | None = settings.KINTSUGI["KINTSUGI_CORRELATION"]
    return () if folder is None else (folder,)
