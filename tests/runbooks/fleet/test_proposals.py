"""What may be armed next by the site's own record: the next rung or the next wider place, with
exact limits, or what the record still lacks."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents.models import Node
from incidents.reliability import proportions
from kintsugi.configuration import setting_values
from runbooks import services
from runbooks.fleet import armings, proposals
from runbooks.guards.policy import DRAIN_REBOOT_VERIFY
from runbooks.lease.withdrawal_reasons import REFUTED
from runbooks.models import Arming, Mode, Run, RunState
from runbooks.node.witnesses import CONFIRMED_AT
from runbooks.shadow import episode_facts, trials
from runbooks.shadow.episode_facts import EpisodeFacts, FaultLook
from runbooks.shadow.report import compute_share
from tests.runbooks.fleet.test_armings import arm
from tests.runbooks.site import EPOCH, Site

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MOST = 0.2


@pytest.mark.parametrize(
    ("count", "of", "most", "missing"),
    [(0, 0, 0.2, 17), (0, 10, 0.2, 7), (0, 17, 0.2, 0), (0, 0, 0.1, 36), (0, 0, 0.05, 72)],
)
def test_what_a_record_lacks(count: int, of: int, most: float, missing: int) -> None:
    assert trials.count_missing(compute_share(count, of), most) == missing


@pytest.mark.parametrize("count", range(4))
@pytest.mark.parametrize("of", [4, 9, 40])
@pytest.mark.parametrize("most", [0.05, 0.2, 0.5])
def test_it_is_the_fewest_that_bring_the_limit_down(count: int, of: int, most: float) -> None:
    missing = trials.count_missing(compute_share(count, of), most)
    assert (proportions.estimate_clopper_pearson(count, of + missing).high or 0) <= most
    if missing:
        assert (proportions.estimate_clopper_pearson(count, of + missing - 1).high or 1) > most


def test_a_limit_that_no_record_shows_is_refused() -> None:
    assert setting_values.parse_percent_from_one("1%") == 0.01
    for text in ("0%", "0.5%", "101%", "x"):
        with pytest.raises(ValueError, match=text):
            setting_values.parse_percent_from_one(text)


def node(name: str, rack: str = "", pod: str = "", *partitions: str) -> Node:
    return Node(name=name, rack=rack, pod=pod, partitions=list(partitions))


@pytest.mark.parametrize(
    ("scope", "place", "wider"),
    [
        ("nodes", "a1", ("rack", "r1")),
        ("nodes", "a1,a2", ("partition", "gpu")),
        ("nodes", "a1,b1", ("pod", "p1")),
        ("nodes", "a1,c1", ("all", "")),
        ("rack", "r1", ("partition", "gpu")),
        ("partition", "gpu", ("pod", "p1")),
        ("pod", "p1", ("all", "")),
    ],
)
def test_the_next_place_is_the_smallest_that_holds_all_its_nodes_and_more(
    scope: str, place: str, wider: tuple[str, str]
) -> None:
    nodes = [
        node("a1", "r1", "p1", "gpu"),
        node("a2", "r1", "p1", "gpu"),
        node("a3", "r2", "p1", "gpu"),
        node("b1", "r3", "p1", "big"),
        node("c1", "r4", "p2", "big"),
    ]
    found = proposals.find_wider(Arming(scope=scope, place=place, nodes=place.split(",")), nodes)
    assert found is not None
    assert (found.scope, found.place) == wider


def test_beyond_all_nodes_there_is_no_place() -> None:
    assert proposals.find_wider(Arming(scope="all"), [node("a1")]) is None


@pytest.fixture
def site(db: None) -> Site:
    return Site(nodes=4, mode=Mode.SHADOW)


def record(site: Site, row: Arming, *, right: int = 0, wrong: int = 0, unknown: int = 0) -> None:
    """Runs by the arming, as they end."""
    incident = site.raise_fault()
    seen = {CONFIRMED_AT: EPOCH.isoformat()}
    found = [seen] * right + [{REFUTED: [["gpu.xid.79", "x"]]}] * wrong + [{}] * unknown
    for facts in found:
        Run.objects.create(
            incident=incident,
            node=incident.node,
            runbook=row.runbook,
            mode=Mode.ARMED,
            state=RunState.SUCCEEDED,
            claimed_at=site.now,
            started_at=site.now,
            finished_at=site.now,
            facts=facts | {"drained_at": EPOCH.isoformat(), armings.USED: row.pk},
        )


def propose(site: Site) -> list[proposals.Proposal]:
    return proposals.list_proposals(site.now, most=MOST)


def test_an_arming_says_what_it_lacks_and_then_the_next_rung(site: Site) -> None:
    row = arm(site, mode=Mode.APPROVAL)
    record(site, row, right=10, unknown=3)
    (found,) = propose(site)
    assert (found.record.count, found.record.of, found.missing) == (0, 10, 7)
    assert "7 more drains, none of them wrong, before armed on nodes gn[001-002]." in (
        proposals.describe(found)
    )
    record(site, row, right=7)
    (found,) = propose(site)
    assert found.is_allowed
    text = proposals.describe(found)
    assert "0 of 17 drains" in text
    assert "19.5% at most (the site takes 20%)" in text
    assert f"kintsugi arming end {row.pk} --reason WHY && kintsugi arming add" in text
    assert "armed --nodes 'gn[001-002]'" in text


def test_one_that_is_armed_is_widened(site: Site) -> None:
    Node.objects.update(rack="r7")
    row = arm(site)
    record(site, row, right=17)
    (found,) = propose(site)
    assert (found.present, found.next) == ("armed on nodes gn[001-002]", "armed on rack r7")
    assert found.command == (
        f"kintsugi arming add {DRAIN_REBOOT_VERIFY} armed --rack r7 --for TIME --reason WHY"
    )


def test_what_was_done_before_it_went_down_a_rung_is_no_record(site: Site) -> None:
    row = arm(site)
    record(site, row, right=17, wrong=1)
    site.now += HOUR / 4
    assert services.sweep_wrong_acts(site.now) == 1
    (found,) = propose(site)
    assert (found.present, found.record.of, found.missing) == (
        "approval on nodes gn[001-002]",
        0,
        17,
    )


def test_one_of_all_nodes_leads_to_the_runbooks_own_mode(site: Site) -> None:
    record(site, arm(site, scope="all", place="", nodes=[]), right=17)
    (found,) = propose(site)
    assert found.command == f"kintsugi mode set {DRAIN_REBOOT_VERIFY} armed"


def test_a_runbook_in_shadow_is_judged_by_its_dry_runs(site: Site) -> None:
    assert propose(site) == []
    for number, look in enumerate([FaultLook.SEEN, FaultLook.SEEN, FaultLook.UNKNOWN], start=1):
        incident = site.raise_fault(node=f"gn00{number}")
        facts: dict[str, object] = {}
        seen = EpisodeFacts(has_looked=True, look=look, allowed_at=site.now)
        episode_facts.store(facts, seen)
        Run.objects.create(
            incident=incident,
            node=incident.node,
            runbook=DRAIN_REBOOT_VERIFY,
            mode=Mode.SHADOW,
            state=RunState.SHADOWED,
            started_at=site.now,
            facts=facts,
        )
    (found,) = propose(site)
    assert (found.arming, found.record.of, found.missing) == (None, 2, 15)
    assert found.next == "approval on a few nodes"


def test_one_that_holds_a_runbook_off_leads_nowhere(site: Site) -> None:
    arm(site, mode=Mode.OFF)
    assert propose(site) == []
