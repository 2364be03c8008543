"""Armings: a runbook goes so far on some nodes, until a time and for so many runs; the strictest of
all that is said counts."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from incidents.models import Node
from runbooks import services
from runbooks.fleet import armings, fleet
from runbooks.guards.policy import DRAIN_REBOOT_VERIFY
from runbooks.models import Arming, AuditEntry, Mode, Run, RunState
from runbooks.outcomes import Controlled, ControlRefused
from tests.runbooks.site import EPOCH, Site

pytestmark = pytest.mark.django_db
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOSTS = "gn[001-002]"


def arm(site: Site, **changes: object) -> Arming:
    """Two nodes for a day; as the order leaves it, without its preflight."""
    values = {
        "runbook": DRAIN_REBOOT_VERIFY,
        "mode": Mode.ARMED,
        "scope": "nodes",
        "place": HOSTS,
        "nodes": ["gn001", "gn002"],
        "until": site.now + DAY,
        "reason": "two nodes of the pilot",
        "set_by": "aya",
        "set_at": site.now,
    }
    return Arming.objects.create(**(values | changes))


def draft(**changes: object) -> services.ArmingDraft:
    values = {
        "runbook": DRAIN_REBOOT_VERIFY,
        "mode": "approval",
        "scope": "nodes",
        "place": HOSTS,
        "until": EPOCH + DAY,
        "reason": "pilot",
    }
    return services.ArmingDraft(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture
def site(db: None) -> Site:
    return Site(mode=Mode.SHADOW)


def acts(site: Site) -> list[tuple[str, str]]:
    return [(act[0], act[1]) for act in site.slurm.journal]


def test_a_runbook_acts_on_the_nodes_that_it_is_armed_for_and_on_no_other(site: Site) -> None:
    arm(site)
    inside, outside = site.lose_gpu("gn002"), site.lose_gpu("gn003")
    site.start()
    assert site.play(site.run_of(inside)).state == RunState.SUCCEEDED
    assert site.play(site.run_of(outside)).state == RunState.SHADOWED
    assert {node for _, node in acts(site)} == {"gn002"}
    (line,) = [line for line in site.story(inside) if "acts by arming" in line]
    assert "of aya, nodes gn[001-002]" in line
    assert "two nodes of the pilot" in line


def test_when_its_runs_are_used_up_the_mode_before_counts_again(site: Site) -> None:
    row = arm(site, runs=1)
    first = site.begin(site.lose_gpu("gn001"))
    site.advance(first)
    row.refresh_from_db()
    assert row.used == 1
    second = site.begin(site.lose_gpu("gn002"))
    assert site.advance(second).state == RunState.SHADOWED
    assert site.play(first).state == RunState.SUCCEEDED
    assert acts(site) == [("drain", "gn001"), ("reboot", "gn001"), ("resume", "gn001")]


def test_of_two_runs_that_begin_at_once_only_so_many_as_are_left_act(site: Site) -> None:
    arm(site, runs=1)
    first, second = site.lose_gpu("gn001"), site.lose_gpu("gn002")
    site.start()
    runs = [site.advance(site.run_of(incident), 2) for incident in (first, second)]
    assert [run.claimed_at is not None for run in runs] == [True, False]
    assert "mode is now shadow" in runs[1].waiting_for
    assert acts(site) == [("drain", "gn001")]


def test_a_run_is_counted_by_a_compare_and_swap(site: Site) -> None:
    row = arm(site, runs=1)
    assert armings.count_run(row.pk, site.now)
    assert not armings.count_run(row.pk, site.now)
    assert not armings.count_run(arm(site).pk, site.now + DAY)


def test_an_arming_that_expires_holds_a_run_before_its_next_act(site: Site) -> None:
    arm(site, until=site.now + timedelta(seconds=30))
    site.slurm.add_job("77", nodes=["gn001"])
    run = site.begin(site.lose_gpu("gn001"))
    site.play(run, limit=HOUR)
    site.slurm.finish_job("77")
    run = site.play(run, limit=HOUR)
    assert acts(site) == [("drain", "gn001")]
    assert "mode is now shadow" in run.waiting_for


def test_an_arming_may_hold_a_runbook_back_where_it_is_armed() -> None:
    site = Site(mode=Mode.ARMED)
    Node.objects.filter(name="gn001").update(rack="r3")
    arm(site, mode=Mode.SHADOW, scope="rack", place="r3", nodes=[])
    run = site.advance(site.begin(site.lose_gpu("gn001")))
    assert (run.state, acts(site)) == (RunState.SHADOWED, [])


def test_in_mode_approval_a_person_is_asked_before_the_first_act(site: Site) -> None:
    arm(site, mode=Mode.APPROVAL)
    run = site.advance(site.begin(site.lose_gpu("gn001")))
    assert (run.state, acts(site)) == (RunState.AWAITING_APPROVAL, [])


@pytest.mark.parametrize(
    ("scope", "place", "is_covered"),
    [
        ("all", "", True),
        ("nodes", "gn001", True),
        ("nodes", "gn002", False),
        ("rack", "r3", True),
        ("rack", "r4", False),
        ("partition", "gpu", True),
        ("partition", "cpu", False),
        ("pod", "pod-a", True),
        ("pod", "pod-b", False),
    ],
)
def test_a_scope_covers_what_the_inventory_has_there(
    scope: str, place: str, is_covered: bool
) -> None:
    node = Node(name="gn001", rack="r3", pod="pod-a", partitions=["gpu"])
    row = Arming(scope=scope, place=place, nodes=[place])
    assert armings.covers(row, node) is is_covered
    assert armings.covers(row, None) is (scope == "all")


def test_whatever_is_armed_the_site_and_a_runbook_that_is_off_are_not_passed() -> None:
    node = Node(name="gn001")
    order = list(Mode)
    for own, site_mode, first, second in itertools.product(Mode, repeat=4):
        rows = [
            Arming(pk=pk, runbook="r", scope="all", mode=mode)
            for pk, mode in enumerate((first, second))
        ]
        found = fleet.ModeTable({"r": own}, site_mode, rows).decide("r", node).mode
        assert order.index(found) <= order.index(site_mode)
        assert order.index(found) <= min(order.index(first), order.index(second))
        assert own is not Mode.OFF or found is Mode.OFF
        alone = fleet.ModeTable({"r": own}, site_mode, []).decide("r", node)
        assert alone == fleet.DecidedMode(min(own, site_mode, key=order.index))


def test_it_is_begun_and_ended_with_a_line_of_the_audit_log_each(site: Site) -> None:
    begun = services.begin_arming(draft(runs=3), actor="aya", now=site.now, world=site.world)
    assert isinstance(begun, Controlled)
    assert "goes to approval by arming" in begun.text
    assert "0 of 3 runs used" in begun.text
    row = Arming.objects.get()
    assert row.nodes == ["gn001", "gn002"]
    ended = services.end_arming(row.pk, "done", actor="bob", now=site.now + HOUR)
    assert isinstance(ended, Controlled)
    again = services.end_arming(row.pk, "done", actor="bob", now=site.now + HOUR)
    assert again == ControlRefused(f"Arming {row.pk} is not in force.")
    assert [(row.actor, row.act) for row in AuditEntry.objects.order_by("pk")] == [
        ("aya", "arm"),
        ("bob", "end_arming"),
    ]
    run = site.advance(site.begin(site.lose_gpu("gn001")))
    assert run.state == RunState.SHADOWED


def test_it_wakes_the_run_that_waited_for_it(site: Site) -> None:
    arm(site, runs=1)
    first, second = site.lose_gpu("gn001"), site.lose_gpu("gn002")
    site.start()
    site.advance(site.run_of(first), 2)
    held = site.advance(site.run_of(second), 2)
    assert held.wake_at is not None
    assert held.wake_at > site.now
    services.begin_arming(draft(), actor="aya", now=site.now, world=site.world)
    assert Run.objects.get(pk=held.pk).wake_at == site.now


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"runbook": "nope"}, "There is no runbook nope"),
        ({"mode": "on"}, "There is no mode on"),
        ({"reason": " "}, "Say why"),
        ({"until": EPOCH}, "ends in the future"),
        ({"runs": 0}, "one run at least"),
        ({"scope": "row"}, "There is no scope row"),
        ({"scope": "all"}, "names no place"),
        ({"place": ""}, "Name the nodes"),
        ({"place": "gn[001-002],gn999"}, "Not in the inventory: gn999."),
        ({"place": "gn[001-"}, "gn[001-: brackets do not match."),
        ({"place": "gn001,gn[002"}, "gn001,gn[002: brackets do not match."),
        ({"place": "gn[2-1]"}, "gn[2-1]: the range 2-1 runs backwards."),
        ({"place": "gn001\x1b[2J"}, "Name the nodes"),
        ({"scope": "rack", "place": "r9"}, "No node of the inventory is in rack r9."),
        ({"runbook": "gpu_reset"}, "gpu_reset is off"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    site: Site, changes: dict[str, object], says: str
) -> None:
    outcome = services.begin_arming(draft(**changes), actor="aya", now=site.now, world=site.world)
    assert isinstance(outcome, ControlRefused)
    assert says in outcome.reason
    assert not Arming.objects.exists()


def test_without_a_reason_none_is_ended(site: Site) -> None:
    row = arm(site)
    assert isinstance(services.end_arming(row.pk, "", actor="a", now=site.now), ControlRefused)
    row.refresh_from_db()
    assert row.ended_at is None


def test_arming_needs_the_preflight_as_a_mode_does(site: Site) -> None:
    """A process without keys for acts takes the last report of the one that acts: here is none."""
    refused = services.begin_arming(draft(mode="armed"), actor="aya", now=site.now, world=None)
    assert isinstance(refused, ControlRefused)
    assert "asked to make the preflight" in refused.reason
    found = services.begin_arming(draft(mode="armed"), actor="aya", now=site.now, world=site.world)
    assert isinstance(found, Controlled)
    assert site.play(site.begin(site.lose_gpu("gn001"))).state == RunState.SUCCEEDED


def test_a_node_that_is_renamed_keeps_what_is_said_of_it(site: Site) -> None:
    row = arm(site)
    armings.rename_node("gn002", "gn102")
    row.refresh_from_db()
    assert row.nodes == ["gn001", "gn102"]
