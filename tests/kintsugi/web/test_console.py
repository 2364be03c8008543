"""Who sees what and who may do what, told with a viewer, an engineer on call, an administrator and
strangers."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import Group, User
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from incidents import services
from incidents.impact import capacity
from incidents.models import (
    Evidence,
    Fault,
    FleetLook,
    Incident,
    IncidentFault,
    Node,
    Notification,
    NotificationChannel,
    Switch,
)
from incidents.vocabulary.lifecycle import State, Trigger
from kintsugi.roles import PERMISSIONS, UserRole
from runbooks.models import (
    Arming,
    Breaker,
    Mode,
    ReturnStop,
    Run,
    RunbookMode,
    RunState,
    StepRun,
    StopSwitch,
)
from tests.builders import NOW, a_fault, a_node, a_switch, an_incident, an_interval
from tests.kintsugi.pages import a_run, pages
from tests.kintsugi.people import People, people

__all__ = ["pages", "people"]

pytestmark = pytest.mark.django_db
RUNBOOK = "drain_reboot_verify"


@pytest.fixture(autouse=True)
def own_stop_file_quick_passwords_empty_cache(settings: LazySettings, tmp_path: Path) -> None:
    settings.KINTSUGI = settings.KINTSUGI | {"KINTSUGI_STOP_FILE": str(tmp_path / "stop")}
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    cache.clear()


def acts(incident: Incident, run: Run) -> list[tuple[str, dict[str, str]]]:
    """What people on call do, as the forms send it."""
    return [
        (
            f"/incidents/incident/{incident.pk}/act/",
            {"trigger": "acknowledge", "acknowledge-note": "Mine."},
        ),
        (f"/runbooks/run/{run.pk}/control/", {"control": "pause", "pause-note": "Let me look."}),
        ("/stop/", {"turn": "engage", "reason": "Power work in row 3."}),
        ("/report/", {"machine": "gn042", "text": "Training hangs."}),
    ]


class TestWhoSees:
    def test_whoever_is_not_signed_in_is_led_to_the_sign_in_page(
        self, people: People, pages: list[str]
    ) -> None:
        for page in [*pages, "/report/", "/auth/user/", "/machine/node/gn042/"]:
            answer = people.anonymous.get(page)
            assert (answer.status_code, answer["Location"]) == (302, f"/login/?next={page}")

    def test_a_stranger_with_an_account_sees_nothing(
        self, people: People, pages: list[str]
    ) -> None:
        assert {
            people.stranger.get(page).status_code for page in [*pages, "/report/", "/auth/user/"]
        } == {302}

    def test_a_stranger_who_signs_in_is_told_whom_to_ask(self, db: None) -> None:
        User.objects.create_user("sam", password="correct horse")
        answer = Client().post("/login/", {"username": "sam", "password": "correct horse"})
        assert "This account has no role yet" in answer.content.decode()

    @pytest.mark.parametrize("role", list(UserRole))
    def test_every_role_signs_in_without_the_staff_flag(self, db: None, role: UserRole) -> None:
        user = User.objects.create_user("vera", password="correct horse")
        user.groups.add(Group.objects.get(name=role.value))
        answer = Client().post("/login/", {"username": "vera", "password": "correct horse"})
        assert (answer.status_code, answer["Location"]) == (302, "/")

    def test_a_viewer_sees_every_page(self, people: People, pages: list[str]) -> None:
        assert {page: people.viewer.get(page).status_code for page in pages} == dict.fromkeys(
            pages, 200
        )

    @pytest.mark.parametrize(
        "page", ["/unread/", "/catalogue/", "/shadow/", "/incidents/incident/"]
    )
    def test_an_address_with_a_null_character_is_refused_in_words(
        self, people: People, page: str
    ) -> None:
        answer = people.viewer.get(page, {"q": "a\0b"})
        assert answer.status_code == 400
        assert "null character" in answer.content.decode()

    @pytest.mark.parametrize(
        "page", ["/unread/", "/catalogue/", "/shadow/", "/incidents/incident/"]
    )
    def test_an_odd_query_is_answered(self, people: People, page: str) -> None:
        for value in ("-1", "99999999999999999999", "2026-13-45", "'", "²", "x" * 300):
            for name in ("q", "page", "p", "o", "before", "since", "all"):
                assert people.viewer.get(page, {name: value}).status_code in (200, 302)

    def test_a_viewer_is_offered_no_action(self, people: People, pages: list[str]) -> None:
        shown = "".join(people.viewer.get(page).content.decode() for page in pages)
        assert 'name="trigger"' not in shown
        assert 'name="control"' not in shown
        assert 'name="turn"' not in shown

    def test_only_an_administrator_sees_people(self, people: People) -> None:
        seen = {
            who: getattr(people, who).get("/auth/user/").status_code
            for who in ("viewer", "on_call", "admin")
        }
        assert seen == {"viewer": 403, "on_call": 403, "admin": 200}


class TestWhoActs:
    def test_a_viewer_acts_on_nothing(self, people: People) -> None:
        a_node()
        incident = an_incident()
        run = a_run(incident)
        asked = [*acts(incident, run), ("/modes/", {"runbook": RUNBOOK, "mode": "off"})]
        assert {page: people.viewer.post(page, form).status_code for page, form in asked} == {
            page: 403 for page, _ in asked
        }
        incident.refresh_from_db()
        assert (incident.state, StopSwitch.objects.count(), RunbookMode.objects.count()) == (
            "open",
            0,
            0,
        )

    def test_an_engineer_on_call_acts_on_incidents_and_runs_reports_and_stops(
        self, people: People
    ) -> None:
        a_node()
        incident = an_incident()
        run = a_run(incident)
        assert {
            people.on_call.post(page, form).status_code for page, form in acts(incident, run)
        } == {302}
        incident.refresh_from_db()
        run.refresh_from_db()
        assert (incident.state, run.state) == (State.ACKNOWLEDGED, RunState.PAUSED)
        assert incident.timeline.filter(actor="omar", text__contains="Mine.").exists()
        assert StopSwitch.objects.get().reason == "Power work in row 3."

    def test_an_engineer_on_call_stops_and_has_nothing_given_back(self, people: People) -> None:
        form = {"turn": "engage_and_keep", "reason": "Bad nodes come back."}
        assert people.viewer.post("/stop/", form).status_code == 403
        assert people.on_call.post("/stop/", form).status_code == 302
        assert ReturnStop.objects.get().switch.reason == "Bad nodes come back."
        page = people.viewer.get("/stop/").content.decode()
        assert "now nothing is given back" in page
        assert "No node is given back either." in page

    def test_an_engineer_on_call_arms_nothing(self, people: People) -> None:
        assert people.on_call.get("/modes/").status_code == 200
        assert (
            people.on_call.post("/modes/", {"runbook": RUNBOOK, "mode": "approval"}).status_code
            == 403
        )

    def test_an_administrator_sets_a_mode(self, people: People) -> None:
        assert (
            people.admin.post("/modes/", {"runbook": RUNBOOK, "mode": "approval"}).status_code
            == 302
        )
        row = RunbookMode.objects.get()
        assert (row.runbook, row.mode, row.set_by) == (RUNBOOK, Mode.APPROVAL, "ada")

    def test_arming_is_refused_with_what_preflight_found(self, people: People) -> None:
        answer = people.admin.post("/modes/", {"runbook": RUNBOOK, "mode": "armed"})
        assert answer.status_code == 409
        assert "KINTSUGI_SLURM" in answer.content.decode()
        assert not RunbookMode.objects.exists()

    def test_an_administrator_arms_some_nodes_for_a_time_and_ends_that(
        self, people: People
    ) -> None:
        a_node()
        form = {
            "order": "arm",
            "runbook": RUNBOOK,
            "mode": "approval",
            "scope": "all",
            "hours": "8",
            "runs": "3",
            "reason": "pilot",
        }
        assert people.on_call.post("/modes/", form).status_code == 403
        assert people.admin.post("/modes/", form | {"hours": "x"}).status_code == 409
        assert people.admin.post("/modes/", form).status_code == 302
        row = Arming.objects.get()
        page = people.viewer.get("/modes/").content.decode()
        assert "0 of 3 runs used" in page
        assert "End it now" not in page
        end = {"order": "end_arming", "arming": row.pk}
        assert people.admin.post("/modes/", end).status_code == 409
        assert people.admin.post("/modes/", end | {"reason": "done"}).status_code == 302
        row.refresh_from_db()
        assert row.ended_by == "ada"

    def test_what_was_typed_of_an_arming_stands_there_again_when_it_is_refused(
        self, people: People
    ) -> None:
        a_node()
        form = {"order": "arm", "runbook": RUNBOOK, "mode": "approval", "scope": "nodes"}
        form |= {"place": "gn999", "hours": "12", "runs": "3", "reason": "pilot of row 1"}
        page = people.admin.post("/modes/", form).content.decode()
        assert "Not in the inventory: gn999." in page
        for value in ("gn999", "12", "3", "pilot of row 1"):
            assert f'value="{value}"' in page
        assert f'<option value="{RUNBOOK}" selected>' in page

    def test_a_new_arming_begins_with_few_nodes_and_a_persons_leave(self, people: People) -> None:
        page = people.admin.get("/modes/").content.decode()
        assert '<option value="approval" selected>' in page
        assert '<option value="nodes" selected>' in page

    def test_arming_some_nodes_needs_the_preflight_too(self, people: People) -> None:
        a_node()
        form = {"order": "arm", "runbook": RUNBOOK, "mode": "armed", "scope": "all"}
        form |= {"hours": "8", "reason": "pilot"}
        answer = people.admin.post("/modes/", form)
        assert answer.status_code == 409
        assert not Arming.objects.exists()

    def test_nobody_writes_past_the_services_not_even_a_superuser(self, db: None) -> None:
        incident = an_incident()
        client = Client()
        client.force_login(User.objects.create_superuser("root"))
        own = f"/incidents/incident/{incident.pk}"
        assert client.get("/incidents/incident/add/").status_code == 404
        assert client.get(f"{own}/delete/").status_code == 404
        assert client.post(f"{own}/change/", {"state": "resolved"}).status_code == 405
        assert client.get(f"{own}/act/").status_code == 405


class TestPeople:
    def test_an_administrator_gives_a_role(self, people: People) -> None:
        vera = User.objects.get(username="vera")
        group = Group.objects.get(name="on-call")
        answer = people.admin.post(
            f"/auth/user/{vera.pk}/change/",
            {"username": "vera", "is_active": "on", "groups": [group.pk]},
        )
        assert answer.status_code == 302
        assert [g.name for g in vera.groups.all()] == ["on-call"]

    def test_an_administrator_makes_nobody_a_superuser(self, people: People) -> None:
        vera = User.objects.get(username="vera")
        form = {
            "username": "vera",
            "is_active": "on",
            "is_superuser": "on",
            "is_staff": "on",
            "user_permissions": ["1"],
        }
        people.admin.post(f"/auth/user/{vera.pk}/change/", form)
        vera.refresh_from_db()
        assert (vera.is_superuser, vera.is_staff, vera.user_permissions.count()) == (
            False,
            False,
            0,
        )

    def test_an_administrator_does_not_touch_a_superuser(self, people: People) -> None:
        root = User.objects.create_superuser("root", password="before")
        for page in (f"/auth/user/{root.pk}/change/", f"/auth/user/{root.pk}/password/"):
            assert (
                people.admin.post(
                    page, {"username": "mine", "password1": "x", "password2": "x"}
                ).status_code
                == 403
            )
        root.refresh_from_db()
        assert (root.username, root.check_password("before")) == ("root", True)

    def test_the_groups_hold_exactly_what_their_role_says_after_migrate(self, db: None) -> None:
        held = {
            group.name: {
                f"{p.content_type.app_label}.{p.codename}" for p in group.permissions.all()
            }
            for group in Group.objects.all()
        }
        assert held == {role.value: set(names) for role, names in PERMISSIONS.items()}


class TestHome:
    def test_the_most_severe_and_then_the_oldest_incident_stands_first(
        self, people: People
    ) -> None:
        an_incident(
            "gpu.xid.13", "node/gn001/gpu/0000:19:00.0", severity="minor", title="mild", at=NOW
        )
        an_incident(
            "gpu.xid.79",
            "node/gn002/gpu/0000:19:00.0",
            severity="critical",
            title="younger",
            at=NOW,
        )
        older = NOW - timedelta(hours=3)
        an_incident(
            "gpu.xid.79",
            "node/gn003/gpu/0000:19:00.0",
            severity="critical",
            title="older",
            at=older,
        )
        page = people.viewer.get("/").content.decode()
        assert page.index("older") < page.index("younger") < page.index("mild")

    def test_what_waits_for_a_person_is_listed(self, people: People) -> None:
        incident = an_incident(needs_human="Ask the vendor for a new tray.")
        Notification.objects.create(
            incident=incident,
            channel="slack:C1",
            reason="card",
            sequence=0,
            state="failed",
            due_at=NOW,
            recorded_at=NOW,
        )
        page = people.viewer.get("/").content.decode()
        assert "Ask the vendor for a new tray." in page
        assert "1 failed" in page

    def test_an_approval_is_asked_for_once_though_its_incident_asks_for_it_too(
        self, people: People
    ) -> None:
        incident = an_incident(needs_human="Approve run 1.")
        run = a_run(incident, RunState.AWAITING_APPROVAL)
        assert [ask.address for ask in people.viewer.get("/").context["asks"]] == [
            f"/runbooks/run/{run.pk}/change/"
        ]

    def test_the_fleet_is_counted_by_pod_as_in_service_out_and_under_repair(
        self, people: People
    ) -> None:
        for number in range(1, 5):
            a_node(f"gn00{number}", pod="pod-a")
        a_node("gn051", pod="pod-b")
        a_node("stray", pod="", is_provisional=True)
        an_incident("gpu.xid.79", "node/gn001/gpu/0000:19:00.0", out_of_service_at=NOW)
        repaired = an_incident("gpu.xid.79", "node/gn002/gpu/0000:19:00.0", out_of_service_at=NOW)
        a_run(repaired)
        an_incident(
            "gpu.xid.79", "node/gn003/gpu/0000:19:00.0", state=State.RESOLVED, out_of_service_at=NOW
        )
        pods = people.viewer.get("/").context["pods"]
        assert pods == [
            {"pod": "pod-a", "total": 4, "repaired": 1, "out": 1, "serving": 2},
            {"pod": "pod-b", "total": 1, "repaired": 0, "out": 0, "serving": 1},
        ]

    def test_a_node_that_a_person_has_resumed_is_in_service_while_its_incident_is_open(
        self, people: People
    ) -> None:
        for name, again_at in (
            ("gn001", NOW + timedelta(minutes=1)),
            ("gn002", NOW - timedelta(minutes=1)),
        ):
            a_node(name, pod="pod-a")
            an_incident("gpu.xid.79", f"node/{name}/gpu/0000:19:00.0", out_of_service_at=NOW)
            an_interval(name, at=again_at)
        assert people.viewer.get("/").context["pods"] == [
            {"pod": "pod-a", "total": 2, "repaired": 0, "out": 1, "serving": 1}
        ]
        assert capacity.get_out_of_service() == {"node/gn002"}

    def test_a_node_that_a_person_has_drained_is_counted_as_out(self, people: People) -> None:
        nodes = [a_node(f"gn00{number}", pod="pod-a") for number in range(1, 4)]
        for node in nodes[:2]:
            an_interval(node.name, holder="bob", reason="bob: tray")
        an_interval(nodes[2].name)
        assert people.viewer.get("/").context["pods"] == [
            {"pod": "pod-a", "total": 3, "repaired": 0, "out": 2, "serving": 1}
        ]

    def test_a_slurm_that_does_not_answer_is_told_with_the_time_of_what_is_shown(
        self, people: People
    ) -> None:
        a_node("gn001", pod="pod-a")
        look = FleetLook.objects.create(
            cluster="slurm", asked_at=NOW, answered_at=NOW - timedelta(minutes=1)
        )
        assert "Slurm has not answered since" not in people.viewer.get("/").content.decode()
        FleetLook.objects.filter(pk=look.pk).update(silent_since=NOW, complaint="No route.")
        page = " ".join(people.viewer.get("/").content.decode().split())
        told = page.split("Slurm has not answered since")[1]
        assert "2025-01-15 03:00:00" in told
        assert "No route. Nodes are shown as they were at" in told
        assert "2025-01-15 02:59:00" in told

    def test_a_node_shows_who_kept_it_out_from_when_to_when(self, people: People) -> None:
        node = a_node("gn001")
        hour = timedelta(hours=1)
        an_interval(
            "gn001", holder="bob", reason="bob: tray", reason_set_by="bob", until=NOW + hour
        )
        an_interval("gn001", at=NOW + hour)
        address = f"/incidents/node/{node.pk}/change/"
        page = " ".join(people.viewer.get(address).content.decode().split())
        table = page.split('id="states"')[1].split("</table>")[0]
        now, before = table.split("<tbody>")[1].split("<tr>")[1:]
        assert ">now<" in now
        assert "in service" in now
        assert "bob: tray" in before
        assert "<td>bob</td>" in before
        assert "2025-01-15 03:00:00" in before
        assert "2025-01-15 04:00:00" in before

    def test_the_numbers_are_in_plain_words_and_say_what_they_leave_out(
        self, people: People
    ) -> None:
        now = timezone.now()
        a_node(in_service_since=now - timedelta(days=90))
        for days in (1, 2, 3, 4, 5):
            an_incident(at=now - timedelta(days=days), fault=a_fault(qualifier=str(days)))
        an_incident("kintsugi.breaker_tripped", "site/breaker", at=now - timedelta(days=1))
        page = " ".join(people.viewer.get("/").content.decode().split())
        assert "Failures are becoming more frequent: one mean misstates the present." in page
        assert "Not counted: 1 of Kintsugi&#x27;s own." in page
        assert "none restored yet, longest 5.0 d" in page
        assert "Laplace" not in page.split('<details class="k-definitions">')[0]

    def test_the_numbers_follow_a_new_incident_at_once(self, people: People) -> None:
        a_node(in_service_since=NOW)
        now = datetime.now(UTC)
        assert people.viewer.get("/").context["numbers"].overall.failures == 0
        incident = an_incident(at=now - timedelta(hours=1))
        assert people.viewer.get("/").context["numbers"].overall.failures == 1
        services.act(
            incident.pk, Trigger.MARK_FALSE_POSITIVE, actor="omar", note="A drill.", now=now
        )
        page = people.viewer.get("/")
        assert page.context["numbers"].overall.failures == 0
        assert "No failures in" in page.content.decode()

    def test_an_empty_site_is_told_what_to_do_next(self, people: People) -> None:
        page = people.on_call.get("/").content.decode()
        assert "No incident is open." in page
        assert "kintsugi inventory import" in page
        assert "No runbook has run yet." in page

    def test_the_stop_switch_stands_above_every_page(
        self, people: People, pages: list[str]
    ) -> None:
        StopSwitch.objects.create(reason="Power work", engaged_by="omar", engaged_at=NOW)
        for page in pages:
            assert "Stopped by omar" in people.viewer.get(page).content.decode(), page

    def test_the_open_breaker_stands_above_every_page_and_is_closed_by_who_may_stop(
        self, people: People, pages: list[str]
    ) -> None:
        Breaker.objects.create(why="14 of 100 nodes turned bad within 10 min", tripped_at=NOW)
        assert all(
            "14 of 100 nodes turned bad" in people.viewer.get(page).content.decode()
            for page in pages
        )
        form = {"turn": "close", "reason": "Hot row."}
        assert [
            one.post("/stop/", form).status_code for one in (people.viewer, people.on_call)
        ] == [403, 302]
        assert "Closed by omar" in people.viewer.get("/stop/").content.decode()

    def test_the_site_is_held_at_a_mode_on_the_page_of_modes(self, people: People) -> None:
        assert "Never set: each runbook" in people.admin.get("/modes/").content.decode()
        assert (
            people.admin.post("/modes/", {"runbook": "site", "mode": "shadow"}).status_code == 302
        )
        assert "No runbook goes further than shadow" in people.admin.get("/modes/").content.decode()

    def test_a_channel_that_takes_no_messages_stands_above_every_page(
        self, people: People, pages: list[str]
    ) -> None:
        NotificationChannel.objects.create(name="console", open_at=NOW, error="Invite the bot.")
        for page in pages:
            assert (
                "Messages to console wait: Invite the bot."
                in people.viewer.get(page).content.decode()
            ), page

    def test_the_stop_file_stands_above_every_page(self, people: People, tmp_path: Path) -> None:
        (tmp_path / "stop").touch()
        assert "Stopped by the file" in people.viewer.get("/").content.decode()

    def test_a_demonstration_says_that_it_is_one(
        self, people: People, settings: LazySettings
    ) -> None:
        settings.KINTSUGI = settings.KINTSUGI | {"KINTSUGI_IS_DEMO": True}
        assert "The cluster is simulated" in people.viewer.get("/").content.decode()


class TestAddresses:
    def test_a_short_address_leads_to_the_incident(self, people: People) -> None:
        incident = an_incident()
        answer = people.viewer.get(f"/incidents/{incident.pk}/")
        assert answer["Location"] == f"/incidents/incident/{incident.pk}/change/"

    def test_a_resource_leads_to_its_machine(self, people: People) -> None:
        node, leaf = a_node(), a_switch("leaf-03")
        assert (
            people.viewer.get("/machine/node/gn042/")["Location"]
            == f"/incidents/node/{node.pk}/change/"
        )
        assert (
            people.viewer.get("/machine/switch/leaf-03/")["Location"]
            == f"/incidents/switch/{leaf.pk}/change/"
        )
        assert people.viewer.get("/machine/node/gn999/").status_code == 404

    def test_a_page_that_does_not_exist_and_one_that_is_not_allowed_say_what_to_do(
        self, people: People
    ) -> None:
        missing = people.viewer.get("/catalogue/gpu.gone/")
        assert (missing.status_code, "There is no such page" in missing.content.decode()) == (
            404,
            True,
        )
        assert "no fault type gpu.gone" in missing.content.decode()
        refused = people.viewer.get("/auth/user/")
        assert (
            refused.status_code,
            "Your role does not allow this" in refused.content.decode(),
        ) == (403, True)

    def test_an_unknown_address_is_not_found_whoever_asks(self, people: People) -> None:
        for address in ("/health", "/metric/", "/incidents/nothing/"):
            assert Client().get(address).status_code == 404
            assert people.viewer.get(address).status_code == 404

    def test_every_answer_forbids_other_hosts(self, people: People, pages: list[str]) -> None:
        for page in [*pages, "/login/"]:
            policy = people.viewer.get(page)["Content-Security-Policy"]
            assert "default-src 'self'" in policy
            assert "http" not in policy

    def test_no_page_names_another_host_to_load_from(
        self, people: People, pages: list[str]
    ) -> None:
        loads = re.compile(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["'](?:https?:)?//""")
        for page in pages:
            assert not loads.search(people.viewer.get(page).content.decode()), page


def _many(number: int) -> None:
    for index in range(number):
        node = a_node(f"gn{index + 1:03d}")
        incident = an_incident(
            "gpu.xid.79", f"node/{node.name}/gpu/0000:19:00.0", needs_human="Look at it."
        )
        run = a_run(incident, RunState.SUCCEEDED, finished_at=NOW, outcome="Resumed.")
        StepRun.objects.create(run=run, index=0, name="drain", outcome="done", started_at=NOW)


def _queries(client: Client, page: str) -> int:
    """Of a process that has shown the page before: what it keeps of the site is read by then."""
    assert client.get(page).status_code == 200
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert client.get(page).status_code == 200
    return len(captured)


@pytest.mark.parametrize(
    "page",
    [
        "/",
        "/incidents/incident/",
        "/incidents/fault/",
        "/incidents/node/",
        "/runbooks/run/",
        "/catalogue/",
    ],
)
def test_a_list_needs_as_many_queries_for_forty_rows_as_for_two(people: People, page: str) -> None:
    _many(2)
    few = _queries(people.on_call, page)
    for model in (StepRun, Run, IncidentFault, Incident, Fault, Node):
        model.objects.all().delete()
    _many(40)
    # What is not shown is counted: open incidents, and on the first page also what people are asked.
    assert _queries(people.on_call, page) <= few + (2 if page == "/" else 1)
    assert few <= 33  # three for banners: refused senders, our own overload, our own parts


def test_an_incident_needs_as_many_queries_for_forty_faults_as_for_one(people: People) -> None:
    incident = an_incident()
    page = f"/incidents/incident/{incident.pk}/change/"
    few = _queries(people.on_call, page)
    for index in range(40):
        fault = a_fault("gpu.xid.45", f"node/gn042/gpu/0000:{index:02x}:00.0")
        Evidence.objects.create(
            fault=fault, position="first", slot=0, source="s", occurred_at=NOW, excerpt="x"
        )
        IncidentFault.objects.create(
            incident=incident,
            fault=fault,
            role="symptom",
            rule="same_node",
            reason="same node",
            joined_at=NOW,
        )
    assert _queries(people.on_call, page) <= few + 1  # evidence is read once there is any
    # Three for banners (refused senders, our overload, our parts), two for unread lines, one for what
    # was changed before.
    assert few <= 36


def test_switches_with_an_open_incident_are_counted_by_role(people: People) -> None:
    a_switch("leaf-01")
    a_switch("leaf-02")
    an_incident("switch.rebooted", "switch/leaf-02")
    assert people.viewer.get("/").context["switch_roles"] == [
        {"role": "leaf", "total": 2, "troubled": 1, "untroubled": 1}
    ]
    assert Switch.objects.count() == 2
