"""What people find and do on the incident pages: search, filters, actions with their word,
reports."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from django.conf import LazySettings

from detectors.faults import Recovery
from incidents import services
from incidents.models import (
    Fault,
    Gpu,
    Incident,
    IncidentFault,
    Notification,
    TimelineEntry,
    UserReport,
)
from incidents.vocabulary.lifecycle import State
from tests.builders import GPU, NOW, a_fault, a_node, a_switch, an_event, an_incident
from tests.kintsugi.people import People, people

__all__ = ["people"]

pytestmark = pytest.mark.django_db


def acted(people: People, incident: Incident, trigger: str, **form: str) -> tuple[int, str]:
    """The answer's status and text to one action by the engineer on call."""
    sent = {"trigger": trigger, **{f"{trigger}-{name}": value for name, value in form.items()}}
    answer = people.on_call.post(f"/incidents/incident/{incident.pk}/act/", sent)
    incident.refresh_from_db()
    return answer.status_code, answer.content.decode()


def found(people: People, query: str) -> set[int]:
    answer = people.viewer.get(f"/incidents/incident/?{query}")
    assert answer.status_code == 200
    return {incident.pk for incident in answer.context["cl"].result_list}


class TestActions:
    @pytest.mark.parametrize(
        ("trigger", "form", "state"),
        [
            ("acknowledge", {"note": "Mine."}, State.ACKNOWLEDGED),
            ("confirm", {"note": "Seen on the node."}, State.OPEN),
            ("handed_to_vendor", {"note": "RMA 4711."}, State.AWAITING_VENDOR),
            ("resolve", {"note": "Reseated.", "recovery": "vendor_replacement"}, State.RESOLVED),
            ("mark_false_positive", {"note": "Planned reboot."}, State.FALSE_POSITIVE),
        ],
    )
    def test_an_action_moves_the_state_and_writes_the_timeline(
        self, people: People, trigger: str, form: dict[str, str], state: State
    ) -> None:
        incident = an_incident()
        assert acted(people, incident, trigger, **form)[0] == 302
        assert incident.state == state
        entry = incident.timeline.get()
        assert (entry.kind, entry.actor) == (trigger, "omar")
        assert form["note"] in entry.text

    def test_what_brought_the_service_back_is_kept_when_resolved(self, people: People) -> None:
        incident = an_incident()
        acted(people, incident, "resolve", note="Rebooted by hand.", recovery="node_restart")
        assert incident.recovery == str(Recovery.NODE_RESTART)

    def test_who_resolves_may_say_since_when_service_was_back(
        self, people: People, settings: LazySettings
    ) -> None:
        settings.TIME_ZONE = "Asia/Tokyo"
        incident = an_incident()
        acted(
            people,
            incident,
            "resolve",
            note="Reseated.",
            recovery="vendor_replacement",
            back_since="2025-01-15T13:30",
        )
        incident.refresh_from_db()
        assert incident.restored_at == datetime(2025, 1, 15, 4, 30, tzinfo=UTC)
        told = incident.timeline.get(kind="resolve").text
        assert "Service is back since 2025-01-15 04:30:00 UTC." in told

    @pytest.mark.parametrize(
        ("back_since", "words"),
        [
            ("2025-01-14T13:30", "before the incident began"),
            ("2999-01-14T13:30", "in the future"),
            ("soon", "Give date and time as"),
        ],
    )
    def test_a_time_that_service_cannot_be_back_since_is_refused_and_what_was_typed_is_kept(
        self, people: People, back_since: str, words: str
    ) -> None:
        incident = an_incident()
        _, page = acted(
            people,
            incident,
            "resolve",
            note="Reseated.",
            recovery="vendor_replacement",
            back_since=back_since,
        )
        incident.refresh_from_db()
        assert (incident.state, incident.restored_at) == (State.OPEN.value, None)
        assert words in page
        assert back_since in page

    def test_a_resolve_without_what_brought_it_back_is_asked_again(self, people: People) -> None:
        incident = an_incident()
        status, page = acted(people, incident, "resolve", note="Rebooted by hand.")
        assert (status, incident.state) == (409, State.OPEN)
        assert "Choose what brought the service back" in page
        assert "Rebooted by hand." in page

    def test_a_false_positive_without_a_reason_is_asked_again(self, people: People) -> None:
        incident = an_incident()
        status, page = acted(people, incident, "mark_false_positive", note="  ")
        assert (status, incident.state) == (409, State.OPEN)
        assert "Say in a few words why" in page

    def test_a_false_positive_is_refused_while_a_poll_sees_a_member_and_the_page_names_it(
        self, people: People
    ) -> None:
        services.ingest([an_event("gpu.lost", source="poll")], now=NOW)
        incident = Incident.objects.get()
        status, page = acted(
            people, incident, "mark_false_positive", note="The node looks well to me."
        )
        assert (status, incident.state) == (409, State.OPEN)
        assert f"gpu.lost on {GPU} was last polled as active at" in page
        assert "The node looks well to me." in page

    def test_an_acknowledgement_needs_no_word(self, people: People) -> None:
        incident = an_incident()
        assert acted(people, incident, "acknowledge", note="")[0] == 302
        assert incident.state == State.ACKNOWLEDGED

    def test_a_duplicate_names_the_incident_that_stays(self, people: People) -> None:
        original, incident = an_incident(), an_incident("gpu.xid.48", "node/gn042/gpu/0000:3b:00.0")
        assert acted(people, incident, "mark_duplicate", original=str(original.pk))[0] == 302
        assert (incident.state, incident.duplicate_of) == (State.DUPLICATE, original)
        assert (
            f"#{incident.pk}"
            in people.viewer.get(f"/incidents/incident/{original.pk}/change/").content.decode()
        )

    def test_a_duplicate_of_what_does_not_exist_is_refused(self, people: People) -> None:
        incident = an_incident()
        status, page = acted(people, incident, "mark_duplicate", original="4711")
        assert (status, incident.state) == (409, State.OPEN)
        assert "There is no incident #4711" in page

    def test_a_duplicate_of_itself_is_refused_with_the_reason(self, people: People) -> None:
        incident = an_incident()
        status, page = acted(people, incident, "mark_duplicate", original=str(incident.pk))
        assert (status, incident.state) == (409, State.OPEN)
        assert "cannot be a duplicate of itself" in page

    def test_an_action_that_came_too_late_is_refused_with_the_reason_and_keeps_the_word(
        self, people: People
    ) -> None:
        incident = an_incident(state=State.RESOLVED)
        status, page = acted(people, incident, "acknowledge", note="I take this one.")
        assert status == 409
        assert "is resolved" in page
        assert "I take this one." in page
        assert not TimelineEntry.objects.exists()

    def test_only_what_the_state_allows_is_offered(self, people: People) -> None:
        incident = an_incident(state=State.RESOLVED)
        forms = people.on_call.get(f"/incidents/incident/{incident.pk}/change/").context["forms"]
        assert {act.trigger.value for act, _, _ in forms} == {
            "mark_false_positive",
            "mark_duplicate",
        }


class TestSearch:
    def test_an_incident_is_found_by_number_node_title_type_and_gpu_serial(
        self, people: People
    ) -> None:
        node = a_node()
        Gpu.objects.filter(node=node, index=0).update(serial="1650123004212", uuid="GPU-11d9")
        incident = an_incident(title="GPU has fallen off the bus")
        an_incident("switch.rebooted", "switch/leaf-03", title="Switch rebooted")
        for word in (
            str(incident.pk),
            f"%23{incident.pk}",
            "gn042",
            "fallen",
            "xid.79",
            "1650123004212",
            "GPU-11d9",
        ):
            assert incident.pk in found(people, f"q={word}"), word
            assert len(found(people, f"q={word}")) == 1, word

    def test_an_incident_is_found_by_the_serial_of_a_gpu_that_is_only_a_symptom(
        self, people: People
    ) -> None:
        node = a_node()
        Gpu.objects.filter(node=node, index=1).update(serial="77")
        incident = an_incident()
        symptom = a_fault("gpu.xid.45", "node/gn042/gpu/0000:3b:00.0")
        IncidentFault.objects.create(
            incident=incident,
            fault=symptom,
            role="symptom",
            rule="same_node",
            reason="same node",
            joined_at=NOW,
        )
        assert found(people, "q=77") == {incident.pk}

    def test_filters_choose_by_state_severity_component_machine_and_month(
        self, people: People
    ) -> None:
        gpu = an_incident(at=datetime(2025, 1, 31, 14, 0, tzinfo=UTC))
        switch = an_incident(
            "switch.rebooted",
            "switch/leaf-03",
            state=State.RESOLVED,
            at=datetime(2025, 3, 2, tzinfo=UTC),
        )
        assert found(people, "state=unfinished") == {gpu.pk}
        assert found(people, "state=resolved") == {switch.pk}
        assert found(people, f"severity__exact={gpu.severity}") == {gpu.pk}
        assert found(people, "component__exact=interconnect_switch") == {switch.pk}
        assert found(people, "machine=switch/leaf-03") == {switch.pk}
        assert found(people, "month=2025-01") == {gpu.pk}
        assert found(people, "month=2025-03") == {switch.pk}

    def test_a_month_begins_at_midnight_of_the_console_zone(
        self, people: People, settings: LazySettings
    ) -> None:
        settings.TIME_ZONE = "Asia/Tokyo"
        incident = an_incident(at=datetime(2025, 1, 31, 16, 0, tzinfo=UTC))
        assert found(people, "month=2025-02") == {incident.pk}

    def test_a_filter_that_makes_no_sense_shows_everything(self, people: People) -> None:
        incident = an_incident()
        assert found(people, "month=soon") == {incident.pk}

    def test_an_empty_list_says_why_it_is_empty(self, people: People) -> None:
        assert "Nothing has been seen" in people.viewer.get("/incidents/incident/").content.decode()
        an_incident()
        assert (
            "Nothing matches"
            in people.viewer.get("/incidents/incident/?q=nowhere").content.decode()
        )


class TestPage:
    def test_the_page_tells_the_whole_story(self, people: People) -> None:
        a_node()
        incident = an_incident(needs_human="Ask the vendor.")
        TimelineEntry.objects.create(
            incident=incident,
            kind="opened",
            actor="kintsugi",
            text="Nothing explains it.",
            occurred_at=NOW,
            recorded_at=NOW,
        )
        UserReport.objects.create(
            incident=incident,
            author="sato",
            text="It hangs.",
            resource="node/gn042",
            reported_at=NOW,
            recorded_at=NOW,
        )
        Notification.objects.create(
            incident=incident,
            channel="slack:C1",
            reason="card",
            sequence=0,
            state="sent",
            permalink="https://example.slack.com/archives/C1/p1",
            due_at=NOW,
            recorded_at=NOW,
            sent_at=NOW,
        )
        page = people.viewer.get(f"/incidents/incident/{incident.pk}/change/").content.decode()
        for told in (
            "gn042 GPU 0",
            "2025-01-15 03:00:00 UTC",
            "Ask the vendor.",
            "Nothing explains it.",
            "It hangs.",
            "https://example.slack.com/archives/C1/p1",
            "root cause",
            "reboot the node",
        ):
            assert told in page, told

    def test_what_devices_and_people_wrote_is_never_markup(self, people: People) -> None:
        incident = an_incident(title="<script>alert(1)</script>")
        UserReport.objects.create(
            incident=incident,
            author="x",
            text="<img src=x onerror=1>",
            resource=GPU,
            reported_at=NOW,
            recorded_at=NOW,
        )
        page = people.viewer.get(f"/incidents/incident/{incident.pk}/change/").content.decode()
        assert "<script>alert" not in page
        assert "<img src=x" not in page

    def test_an_incident_that_does_not_exist_leads_home_with_a_word(self, people: People) -> None:
        answer = people.viewer.get("/incidents/incident/4711/change/", follow=True)
        assert answer.redirect_chain[0][0] == "/"


class TestReports:
    def test_a_report_opens_an_incident_on_the_gpu_that_was_named(self, people: People) -> None:
        a_node()
        form = {"machine": "gn042", "gpu": "1", "text": "NCCL hangs on rank 27."}
        answer = people.on_call.post("/report/", form)
        incident = Incident.objects.get()
        assert answer["Location"] == f"/incidents/incident/{incident.pk}/change/"
        assert (incident.root_resource, incident.channels) == (
            "node/gn042/gpu/0000:3b:00.0",
            ["user"],
        )
        assert UserReport.objects.get().text == "NCCL hangs on rank 27."

    def test_a_report_joins_what_the_platform_has_seen_on_the_same_node(
        self, people: People
    ) -> None:
        a_node()
        now = datetime.now(UTC)
        incident = an_incident(at=now - timedelta(minutes=2))
        answer = people.on_call.post("/report/", {"machine": "gn042", "text": "It hangs."})
        assert answer["Location"] == f"/incidents/incident/{incident.pk}/change/"

    def test_a_report_keeps_since_when_in_the_console_zone(
        self, people: People, settings: LazySettings
    ) -> None:
        settings.TIME_ZONE = "Asia/Tokyo"
        a_switch("leaf-03")
        with time_machine.travel(NOW, tick=False):
            form = {"machine": "leaf-03", "text": "Rail 2 is slow.", "since": "2025-01-15T11:30"}
            assert people.on_call.post("/report/", form).status_code == 302
        assert Fault.objects.get().raised_at == datetime(2025, 1, 15, 2, 30, tzinfo=UTC)

    @pytest.mark.parametrize(
        ("form", "said"),
        [
            (
                {"machine": "gn999", "text": "x"},
                "The inventory knows no node or switch named gn999",
            ),
            ({"machine": "gn042", "gpu": "9", "text": "x"}, "gn042 has no GPU 9"),
            ({"machine": "gn042", "text": ""}, "Say what you saw"),
            ({"machine": "", "text": "x"}, "Name the node or switch"),
            ({"machine": "gn042", "text": "x", "since": "2999-01-01T00:00"}, "lies in the future"),
            ({"machine": "gn042", "text": "x", "since": "yesterday"}, "Give date and time as"),
            (
                {"machine": "gn042", "text": "x", "fault_type": "gpu.gone"},
                "The catalogue has no fault type gpu.gone",
            ),
        ],
    )
    def test_a_report_that_cannot_be_taken_says_what_to_do_and_keeps_what_was_typed(
        self, people: People, form: dict[str, str], said: str
    ) -> None:
        a_node()
        answer = people.on_call.post("/report/", form)
        page = answer.content.decode()
        assert answer.status_code == 422
        assert said in page
        assert not Incident.objects.exists()
        assert form["machine"] in page
