"""Lines that no signature takes: counted by form and machine, shown beside incidents there."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from detectors.logs.unread import UnreadLine
from incidents.checks import unread_lines
from incidents.models import Incident, UnreadOnMachine, UnreadTemplate
from tests.builders import NOW, an_incident

pytestmark = pytest.mark.django_db

LINE = UnreadLine(
    host="gn042",
    program="kernel",
    template="quux<*>: firmware gave no response",
    severity=4,
    first_at=NOW - timedelta(days=900),  # what a line claims
    last_at=NOW - timedelta(days=900),
    count=2,
    sample="quux0: firmware gave no response",
)


def test_lines_of_a_form_are_one_template_with_its_machines() -> None:
    other = replace(LINE, host="gn043", severity=3, count=5)
    unread_lines.record([LINE, other], NOW)
    unread_lines.record([replace(LINE, sample="quux7: firmware gave no response")], NOW)
    [template] = unread_lines.list_templates()
    assert (template.count, template.severity, template.machine_count) == (9, 3, 2)
    assert template.samples == [LINE.sample, "quux7: firmware gave no response"]
    counts = UnreadOnMachine.objects.values_list("machine", "count").order_by("machine")
    assert list(counts) == [("gn042", 4), ("gn043", 5)]


def test_times_are_those_at_which_we_heard_of_it() -> None:
    unread_lines.record([LINE], NOW)
    unread_lines.record([LINE], NOW + timedelta(minutes=3))
    template = UnreadTemplate.objects.get()
    assert (template.first_at, template.last_at) == (NOW, NOW + timedelta(minutes=3))


def test_forms_that_differ_in_a_word_become_one_that_keeps_its_key() -> None:
    lab = replace(LINE, template="port lab failed to reach state up")
    unread_lines.record([lab], NOW)
    key = UnreadTemplate.objects.get().key
    unread_lines.record([replace(LINE, template="port office failed to reach state up")], NOW)
    unread_lines.record([lab], NOW)
    template = UnreadTemplate.objects.get()
    assert (template.template, template.key) == ("port <*> failed to reach state up", key)
    assert template.count == 6


def test_forms_of_another_program_stay_apart() -> None:
    unread_lines.record([LINE, replace(LINE, program="xcvrd")], NOW)
    assert UnreadTemplate.objects.count() == 2


def test_invented_forms_and_machines_fill_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_lines, "MOST_TEMPLATES", 3)
    monkeypatch.setattr(unread_lines, "MOST_MACHINES", 4)
    for word in ("alpha", "beta", "gamma", "delta", "epsilon"):
        at = NOW + timedelta(seconds=len(word))
        unread_lines.record([replace(LINE, template=f"{word} failed")], at)
    assert UnreadTemplate.objects.count() == 3
    lines = [replace(LINE, host=f"gn{number:03d}") for number in range(9)]
    unread_lines.record(lines, NOW + timedelta(minutes=1))
    newest = UnreadTemplate.objects.latest("last_at")
    assert (newest.count, newest.machines.count()) == (18, 4)


def test_a_form_that_was_not_seen_for_a_quarter_is_forgotten() -> None:
    unread_lines.record([LINE], NOW)
    later = NOW + unread_lines.KEPT_FOR + timedelta(days=1)
    unread_lines.record([replace(LINE, template="another form failed")], later)
    assert [row.template for row in UnreadTemplate.objects.all()] == ["another form failed"]


def test_words_find_by_program_text_and_machine() -> None:
    unread_lines.record([LINE, replace(LINE, program="xcvrd", host="leaf01")], NOW)
    assert [row.program for row in unread_lines.list_templates(["leaf01"])] == ["xcvrd"]
    assert [row.program for row in unread_lines.list_templates(["kern", "firmware"])] == ["kernel"]
    assert not unread_lines.list_templates(["firmware", "nowhere"])


class TestBesideAnIncident:
    @pytest.fixture
    def incident(self) -> Incident:
        return an_incident()

    def sightings(self, incident: Incident, *, at: timedelta, host: str = "gn042") -> list[str]:
        unread_lines.record([replace(LINE, host=host)], incident.onset_at + at)
        now = incident.onset_at + timedelta(hours=1)
        return [found.sample for found in unread_lines.get_sightings_beside(incident, now)]

    def test_lines_of_its_machine_are_shown(self, incident: Incident) -> None:
        assert self.sightings(incident, at=timedelta(minutes=-10)) == [LINE.sample]

    def test_lines_long_before_are_not(self, incident: Incident) -> None:
        assert not self.sightings(incident, at=-unread_lines.BEFORE - timedelta(minutes=1))

    def test_lines_of_other_machines_are_not(self, incident: Incident) -> None:
        assert not self.sightings(incident, at=timedelta(0), host="gn007")

    def test_lines_after_its_end_are_not(self, incident: Incident) -> None:
        incident.closed_at = incident.onset_at + timedelta(minutes=5)
        assert not self.sightings(incident, at=timedelta(minutes=6))
