"""What people merge, split and re-root: done in one step, told on every incident, kept against the
rules."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents import services
from incidents.models import Decision, Fault, Incident, IncidentFault
from incidents.people import edit
from incidents.people.edit import Rearranged
from incidents.vocabulary.changes import Refused
from tests.builders import GPU, NOW, OTHER_GPU, a_clear, a_node, an_event
from tests.kintsugi.people import People, people

__all__ = ["people"]

pytestmark = pytest.mark.django_db

LATER = NOW + timedelta(minutes=2)
CARD = "node/gn043/nic/mlx5_4"


def two() -> tuple[Incident, Incident]:
    """A lost GPU on one node, a card that fails on another."""
    a_node()
    a_node("gn043")
    services.ingest([an_event(), an_event("nic.firmware.unhealthy", CARD)], now=NOW)
    one, other = Incident.objects.order_by("root_resource")
    return one, other


def cascade() -> Incident:
    """Two GPUs of one node, one incident of two faults."""
    a_node()
    services.ingest([an_event("gpu.xid.79", GPU), an_event("gpu.xid.48", OTHER_GPU)], now=NOW)
    return Incident.objects.get()


def fault(incident: Incident, fault_type: str) -> Fault:
    return Fault.objects.get(fault_type=fault_type, membership__incident=incident)


def of(outcome: edit.Outcome) -> Incident:
    assert isinstance(outcome, Rearranged), outcome
    return Incident.objects.get(pk=outcome.incident)


def why_not(outcome: edit.Outcome) -> str:
    assert isinstance(outcome, Refused), outcome
    return outcome.reason


class TestMerge:
    def test_every_fault_becomes_a_symptom_of_the_other_incident_when_two_are_merged(self) -> None:
        one, other = two()
        stays = of(edit.merge(one.pk, other.pk, actor="yuki", note="One power shelf.", now=LATER))
        one.refresh_from_db()
        assert (one.state, one.duplicate_of_id, one.members.count()) == ("duplicate", other.pk, 0)
        moved = stays.members.get(fault__fault_type="gpu.xid.79")
        assert (moved.role, moved.rule, moved.placed_by) == ("symptom", "by_person", "yuki")
        assert "by yuki at 2025-01-15 03:02:00 UTC: One power shelf." in moved.reason
        assert (stays.root_fault, stays.severity, stays.action) == (
            other.root_fault,
            "critical",
            one.action,
        )

    def test_both_timelines_and_the_decisions_tell_who_merged(self) -> None:
        one, other = two()
        edit.merge(one.pk, other.pk, actor="yuki", note="One power shelf.", now=LATER)
        assert one.timeline.last().text.endswith(
            "Merged by yuki: its 1 fault moved there. One power shelf."
        )
        assert (other.timeline.last().kind, other.timeline.last().actor) == ("merged", "yuki")
        made = Decision.objects.filter(kind="merged", actor="yuki")
        assert {row.incident_id for row in made} == {one.pk, other.pk}
        assert other.notifications.filter(reason="merged").exists()

    def test_a_later_event_counts_in_the_incident_that_stayed(self) -> None:
        one, other = two()
        edit.merge(one.pk, other.pk, actor="yuki", now=LATER)
        ended = LATER + timedelta(minutes=1)
        services.ingest([a_clear("gpu.xid.79", GPU, at=ended)], now=ended)
        services.ingest(
            [an_event(at=ended + timedelta(minutes=1))], now=ended + timedelta(minutes=1)
        )
        assert fault(other, "gpu.xid.79").is_active
        assert Incident.objects.count() == 2

    def test_what_a_person_placed_comes_back_there_while_its_incident_is_watched(self) -> None:
        a_node()
        a_node("gn043")
        services.ingest([an_event(), an_event("nic.module.error", CARD)], now=NOW)
        one, other = Incident.objects.order_by("root_resource")
        edit.merge(other.pk, one.pk, actor="yuki", now=LATER)
        states = []
        for minutes, event in (
            (3, a_clear("nic.module.error", CARD, at=NOW + timedelta(minutes=3))),
            (4, a_clear("gpu.xid.79", GPU, at=NOW + timedelta(minutes=4))),
            (6, an_event("nic.module.error", CARD, at=NOW + timedelta(minutes=6))),
        ):
            services.ingest([event], now=NOW + timedelta(minutes=minutes))
            one.refresh_from_db()
            states.append(one.state)
        assert states == ["open", "monitoring", "monitoring"]
        assert fault(one, "nic.module.error").is_active
        assert Incident.objects.count() == 2

    def test_an_incident_that_is_watched_opens_again_when_what_is_merged_still_stands(self) -> None:
        one, other = two()
        services.ingest([a_clear("nic.firmware.unhealthy", CARD, at=LATER)], now=LATER)
        Incident.objects.filter(pk=other.pk).update(state="monitoring")
        assert of(edit.merge(one.pk, other.pk, actor="yuki", now=LATER)).state == "open"

    def test_a_merge_is_undone_by_a_split(self) -> None:
        one, other = two()
        gpu = one.root_fault
        assert gpu is not None
        edit.merge(one.pk, other.pk, actor="yuki", now=LATER)
        again = of(edit.split(other.pk, [gpu.pk], actor="omar", now=LATER))
        assert (again.root_fault, again.title, again.severity) == (gpu, one.title, one.severity)
        assert [link.fault for link in other.members.all()] == [other.root_fault]

    def test_a_merge_is_refused_with_the_reason(self) -> None:
        one, other = two()
        assert "cannot be merged into itself" in why_not(
            edit.merge(one.pk, one.pk, actor="yuki", now=LATER)
        )
        assert "There is no incident #999" in why_not(
            edit.merge(one.pk, 999, actor="yuki", now=LATER)
        )
        edit.merge(one.pk, other.pk, actor="yuki", now=LATER)
        told = why_not(edit.merge(one.pk, other.pk, actor="omar", now=LATER))
        assert (
            told
            == f"Incident #{one.pk} is closed as duplicate of #{other.pk}: its faults stay as they are."
        )
        assert "is closed as duplicate" in why_not(
            edit.merge(other.pk, one.pk, actor="omar", now=LATER)
        )
        assert other.members.count() == 2


class TestSplit:
    def test_faults_leave_as_an_incident_of_their_own(self) -> None:
        incident = cascade()
        second = fault(incident, "gpu.xid.48")
        fresh = of(
            edit.split(incident.pk, [second.pk], actor="yuki", note="Another part.", now=LATER)
        )
        assert (fresh.root_fault, fresh.state, fresh.owner) == (second, "open", "node/gn042")
        assert fresh.node is not None
        assert fresh.is_root_by_person
        link = IncidentFault.objects.get(fault=second)
        assert (link.incident, link.role, link.placed_by) == (fresh, "root", "yuki")
        assert {incident.timeline.last().kind, fresh.timeline.last().kind} == {"split", "opened"}
        assert Decision.objects.filter(kind="split", actor="yuki").count() == 2

    def test_severity_and_action_are_those_of_what_is_left(self) -> None:
        a_node()
        services.ingest([an_event("gpu.xid.48", GPU), an_event("gpu.xid.79", OTHER_GPU)], now=NOW)
        incident = Incident.objects.get()
        assert incident.severity == "critical"
        root = incident.root_fault
        assert root is not None
        edit.split(incident.pk, [fault(incident, "gpu.xid.79").pk], actor="yuki", now=LATER)
        incident.refresh_from_db()
        assert (incident.severity, incident.action) == (root.severity, root.action)

    def test_the_jobs_of_both_are_counted_anew(self) -> None:
        incident = cascade()
        Incident.objects.update(impact_at=NOW)
        fresh = of(
            edit.split(incident.pk, [fault(incident, "gpu.xid.48").pk], actor="yuki", now=LATER)
        )
        incident.refresh_from_db()
        assert (incident.impact_at, fresh.impact_at) == (None, None)

    def test_the_rules_do_not_bring_back_what_a_person_split_off(self) -> None:
        incident = cascade()
        second = fault(incident, "gpu.xid.48")
        fresh = of(edit.split(incident.pk, [second.pk], actor="yuki", now=LATER))
        for minute, event in enumerate(
            [
                an_event("gpu.xid.48", OTHER_GPU),
                an_event("gpu.xid.79", GPU),
                an_event("gpu.lost", GPU),
            ]
        ):
            at = LATER + timedelta(minutes=minute)
            services.ingest([event], now=at)
            services.sweep(now=at)
        second.refresh_from_db()
        assert (second.membership.incident, second.count) == (fresh, 2)
        fresh.refresh_from_db()
        assert (fresh.state, fresh.root_fault) == ("open", second)

    def test_an_incident_whose_last_standing_fault_left_is_watched(self) -> None:
        incident = cascade()
        ended = LATER - timedelta(minutes=1)
        services.ingest([a_clear("gpu.xid.79", GPU, at=ended)], now=ended)
        edit.split(incident.pk, [fault(incident, "gpu.xid.48").pk], actor="yuki", now=LATER)
        incident.refresh_from_db()
        assert incident.state == "monitoring"

    def test_a_split_is_refused_with_the_reason(self) -> None:
        incident = cascade()
        root, second = fault(incident, "gpu.xid.79"), fault(incident, "gpu.xid.48")

        def told(*faults: int, root_id: int | None = None) -> str:
            return why_not(
                edit.split(incident.pk, faults, root_id=root_id, actor="yuki", now=LATER)
            )

        assert told() == "Choose the faults that leave the incident."
        assert told(999).startswith("Fault 999 is not part of incident")
        assert told(root.pk).startswith(f"The root of incident #{incident.pk} stays.")
        assert told(root.pk, second.pk).startswith("The last fault stays")
        assert told(second.pk, root_id=root.pk).startswith(f"Fault {root.pk} does not leave")
        assert Incident.objects.count() == 1

    def test_the_second_of_two_people_is_refused(self) -> None:
        incident = cascade()
        second = fault(incident, "gpu.xid.48")
        edit.split(incident.pk, [second.pk], actor="yuki", now=LATER)
        told = why_not(edit.split(incident.pk, [second.pk], actor="omar", now=LATER))
        assert (
            told
            == f"Fault {second.pk} is not part of incident #{incident.pk}, or no longer. Look again."
        )


class TestReroot:
    def test_another_member_becomes_the_root(self) -> None:
        incident = cascade()
        old, second = fault(incident, "gpu.xid.79"), fault(incident, "gpu.xid.48")
        same = of(
            edit.reroot(incident.pk, second.pk, actor="yuki", note="It came first.", now=LATER)
        )
        assert (same.root_fault, same.fault_type, same.root_resource) == (
            second,
            "gpu.xid.48",
            OTHER_GPU,
        )
        assert same.is_root_by_person
        assert [link.fault for link in same.members.filter(role="root")] == [second]
        assert (
            f"until yuki chose {second.fault_type}" in IncidentFault.objects.get(fault=old).reason
        )
        entry = same.timeline.last()
        assert (entry.kind, entry.actor) == ("root_changed", "yuki")
        assert "It came first." in entry.text
        assert Decision.objects.get(kind="rerooted").fault == second

    def test_a_root_that_a_person_chose_stays_the_root_when_a_stronger_fault_comes(self) -> None:
        a_node()
        services.ingest([an_event("gpu.xid.154", GPU), an_event("gpu.xid.48", GPU)], now=NOW)
        incident = Incident.objects.get()
        chosen = fault(incident, "gpu.xid.154")
        edit.reroot(incident.pk, chosen.pk, actor="yuki", now=LATER)
        services.ingest([an_event("gpu.xid.79", GPU, at=LATER)], now=LATER)
        incident.refresh_from_db()
        assert incident.root_fault == chosen

    def test_a_root_change_is_refused_with_the_reason(self) -> None:
        incident = cascade()
        root, second = fault(incident, "gpu.xid.79"), fault(incident, "gpu.xid.48")
        assert "is the root of incident" in why_not(
            edit.reroot(incident.pk, root.pk, actor="y", now=LATER)
        )
        assert "is not part of" in why_not(edit.reroot(incident.pk, 999, actor="y", now=LATER))
        edit.reroot(incident.pk, second.pk, instead_of=root.pk, actor="yuki", now=LATER)
        told = why_not(
            edit.reroot(incident.pk, root.pk, instead_of=root.pk, actor="omar", now=LATER)
        )
        assert told.startswith(
            f"Somebody was quicker: the root of incident #{incident.pk} is now gpu.xid.48"
        )


class TestConsole:
    """The same on the incident's page, by the person on call."""

    def test_a_merge_leads_to_the_incident_that_stays(self, people: People) -> None:
        one, other = two()
        sent = {"trigger": "merge", "merge-into": str(other.pk), "merge-note": "One power shelf."}
        answer = people.on_call.post(f"/incidents/incident/{one.pk}/act/", sent, follow=True)
        page = answer.content.decode()
        assert answer.redirect_chain[-1][0] == f"/incidents/incident/{other.pk}/change/"
        assert f"Incident #{one.pk} is now part of incident #{other.pk}." in page
        assert f"moved from incident #{one.pk} by omar at" in page
        merged = people.viewer.get(f"/incidents/incident/{one.pk}/change/").content.decode()
        assert f"Its faults are part of incident #{other.pk} now." in merged

    def test_a_split_makes_the_chosen_fault_the_root_of_the_new_incident(
        self, people: People
    ) -> None:
        incident = cascade()
        second = fault(incident, "gpu.xid.48")
        sent = {
            "trigger": "split",
            "split-faults": [str(second.pk)],
            "split-root": str(second.pk),
            "split-note": "",
        }
        answer = people.on_call.post(f"/incidents/incident/{incident.pk}/act/", sent)
        fresh = Incident.objects.get(root_fault=second)
        assert (answer.status_code, answer["Location"]) == (
            302,
            f"/incidents/incident/{fresh.pk}/change/",
        )
        assert fresh.timeline.get(kind="opened").actor == "omar"

    def test_a_root_chosen_on_an_old_page_is_refused_and_the_word_is_kept(
        self, people: People
    ) -> None:
        incident = cascade()
        root, second = fault(incident, "gpu.xid.79"), fault(incident, "gpu.xid.48")
        edit.reroot(incident.pk, second.pk, actor="yuki", now=LATER)
        sent = {
            "trigger": "reroot",
            "reroot-fault": str(root.pk),
            "reroot-instead_of": str(root.pk),
            "reroot-note": "I saw it fall.",
        }
        answer = people.on_call.post(f"/incidents/incident/{incident.pk}/act/", sent)
        page = answer.content.decode()
        assert answer.status_code == 409
        assert "Somebody was quicker: the root of incident" in page
        assert "I saw it fall." in page
        incident.refresh_from_db()
        assert incident.root_fault == second

    def test_a_lone_fault_can_only_be_merged_and_a_closed_incident_not_at_all(
        self, people: People
    ) -> None:
        one, other = two()

        def offered(incident: Incident) -> set[str]:
            answer = people.on_call.get(f"/incidents/incident/{incident.pk}/change/")
            return {act.value for act, _, _ in answer.context["forms"]} & {
                "merge",
                "split",
                "reroot",
            }

        assert offered(one) == {"merge"}
        edit.merge(one.pk, other.pk, actor="yuki", now=LATER)
        assert offered(other) == {"merge", "split", "reroot"}
        assert offered(one) == set()

    def test_who_may_only_look_can_rearrange_nothing(self, people: People) -> None:
        one, other = two()
        sent = {"trigger": "merge", "merge-into": str(other.pk)}
        assert people.viewer.post(f"/incidents/incident/{one.pk}/act/", sent).status_code == 403
        assert people.viewer.get(f"/incidents/incident/{one.pk}/change/").context["forms"] == []
        one.refresh_from_db()
        assert one.state == "open"
