"""A second person: what one asks for, another confirms to the word, where the site says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User
from pytest_django import Settings

from incidents.models import Node
from kintsugi.roles import UserRole
from runbooks import services
from runbooks.guards.policy import DRAIN_REBOOT_VERIFY
from runbooks.models import Arming, AuditEntry, Mode, RunbookMode, SecondPersonRequest
from runbooks.outcomes import AskedSecond, Controlled, ControlRefused, Outcome
from runbooks.second_person import requests
from tests.incidents.test_races import at_once
from tests.runbooks.fleet.test_armings import arm, draft
from tests.runbooks.site import Site

HOUR = timedelta(hours=1)
BOOK = DRAIN_REBOOT_VERIFY
BOTH = frozenset({"arming", "widening"})


def an_account(name: str, role: UserRole = UserRole.ADMIN) -> User:
    user: User = User.objects.create_user(name)
    user.groups.add(Group.objects.get(name=role.value))
    return user


@pytest.fixture
def site(db: None, settings: Settings) -> Site:
    """Where arming and widening need two; ada and bob may set modes, omar is on call."""
    settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_SECOND_PERSON": BOTH}
    for name in ("ada", "bob"):
        an_account(name)
    an_account("omar", UserRole.ON_CALL)
    return Site(mode=Mode.SHADOW)


def set_mode(site: Site, mode: str, actor: str = "ada", book: str = BOOK) -> Outcome:
    return services.set_mode(book, mode, actor=actor, now=site.now, world=site.world)


def begin(site: Site, actor: str = "ada", **changes: object) -> Outcome:
    return services.begin_arming(draft(**changes), actor=actor, now=site.now, world=site.world)


def standing() -> SecondPersonRequest:
    return SecondPersonRequest.objects.get(ended_at=None)


def confirm(site: Site, actor: str = "bob", seen: str | None = None, number: int = 0) -> Outcome:
    request = SecondPersonRequest.objects.order_by("pk").last()
    assert request is not None
    seen = requests.get_seen(request) if seen is None else seen
    number = number or request.pk
    return services.confirm_request(number, actor=actor, seen=seen, now=site.now, world=site.world)


def said(outcome: Outcome) -> str:
    assert isinstance(outcome, ControlRefused), outcome
    return outcome.reason


def acts() -> list[tuple[str, str]]:
    return list(AuditEntry.objects.order_by("pk").values_list("actor", "act"))


def test_where_the_site_does_not_say_so_one_person_is_enough(
    site: Site, settings: Settings
) -> None:
    settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_SECOND_PERSON": None}
    assert isinstance(set_mode(site, "armed", actor="whoever"), Controlled)
    assert isinstance(begin(site, mode="armed"), Controlled)
    assert not SecondPersonRequest.objects.exists()


def test_nothing_is_armed_before_a_second_person_has_confirmed_it(site: Site) -> None:
    asked = set_mode(site, "armed")
    assert isinstance(asked, AskedSecond)
    assert "Nothing is done yet" in asked.text
    assert f"{BOOK} goes to armed." in asked.text
    assert services.get_mode(BOOK) is Mode.SHADOW
    request = standing()
    assert (request.kind, request.asked_by, request.until) == ("arming", "ada", site.now + HOUR)
    done = confirm(site)
    assert isinstance(done, Controlled)
    assert services.get_mode(BOOK) is Mode.ARMED
    assert RunbookMode.objects.get(runbook=BOOK).set_by == "ada, confirmed by bob"
    assert acts() == [
        ("ada", "ask_second_person"),
        ("bob", "second_person_confirmed"),
        ("bob", "set_mode"),
    ]


def test_an_arming_is_what_was_asked_for_to_the_word(site: Site) -> None:
    assert isinstance(begin(site, mode="armed", runs=3), AskedSecond)
    assert not Arming.objects.exists()
    site.now += timedelta(minutes=20)
    assert isinstance(confirm(site), Controlled)
    row = Arming.objects.get()
    wanted = draft(mode="armed", runs=3)
    assert (row.mode, row.place, row.until, row.runs, row.reason) == (
        wanted.mode,
        wanted.place,
        wanted.until,
        3,
        "pilot",
    )
    assert (row.nodes, row.set_by, row.set_at) == (
        ["gn001", "gn002"],
        "ada, confirmed by bob",
        site.now,
    )


@pytest.mark.parametrize("who", ["ada", "ADA"])
def test_who_asked_does_not_confirm(site: Site, who: str) -> None:
    if who != "ada":
        an_account(who)
    set_mode(site, "armed")
    assert "You have asked for this yourself" in said(confirm(site, who))
    assert services.get_mode(BOOK) is Mode.SHADOW
    assert standing().asked_by == "ada"


@pytest.mark.parametrize("who", ["omar", "root"])
def test_who_may_not_arm_neither_asks_nor_confirms(site: Site, who: str) -> None:
    assert f"{who} has none" in said(set_mode(site, "armed", actor=who))
    set_mode(site, "armed")
    assert f"{who} has none" in said(confirm(site, who))
    assert services.get_mode(BOOK) is Mode.SHADOW


def test_an_account_that_was_closed_since_confirms_nothing(site: Site) -> None:
    set_mode(site, "armed")
    User.objects.filter(username="bob").update(is_active=False)
    assert "bob has none" in said(confirm(site))


def test_who_asks_twice_is_told_that_it_waits(site: Site) -> None:
    set_mode(site, "armed")
    assert "You have asked for this" in said(set_mode(site, "armed"))
    assert "ada has asked for this" in said(set_mode(site, "armed", actor="bob"))
    assert "Request" in said(set_mode(site, "armed", actor="bob"))
    assert standing().asked_by == "ada"
    assert services.get_mode(BOOK) is Mode.SHADOW


def test_who_asks_for_another_end_asks_anew_and_the_old_words_confirm_nothing(site: Site) -> None:
    begin(site, mode="armed")
    old = standing()
    begin(site, mode="armed", until=site.now + 90 * 24 * HOUR)
    assert standing().pk != old.pk
    outcome = confirm(site, seen=requests.get_seen(old), number=old.pk)
    assert "was outdated by ada" in said(outcome)
    assert not Arming.objects.exists()


def test_an_old_request_expires(site: Site) -> None:
    set_mode(site, "armed")
    site.now += HOUR
    assert "has expired" in said(confirm(site))
    request = SecondPersonRequest.objects.get()
    assert (request.ending, request.ended_by) == ("expired", "kintsugi")
    assert list(requests.list_standing(site.now)) == []
    assert isinstance(set_mode(site, "armed"), AskedSecond)
    assert services.get_mode(BOOK) is Mode.SHADOW


def lower_the_site(site: Site) -> None:
    services.set_mode("site", "approval", actor="omar", now=site.now, world=site.world)


def arm_elsewhere(site: Site) -> None:
    arm(site, nodes=["gn009"], place="gn009")


def move_a_node(_site: Site) -> None:
    Node.objects.filter(name="gn002").update(rack="r7")


@pytest.mark.parametrize("change", [lower_the_site, arm_elsewhere, move_a_node])
def test_what_has_changed_since_is_asked_for_again(
    site: Site, change: Callable[[Site], None]
) -> None:
    Node.objects.filter(name__in=["gn001", "gn002"]).update(rack="r3")
    begin(site, mode="armed", scope="rack", place="r3")
    change(site)
    assert "have changed" in said(confirm(site))
    assert "was outdated" in said(confirm(site))
    assert not Arming.objects.filter(scope="rack").exists()
    assert ("bob", "second_person_outdated") in acts()


def test_only_what_the_second_person_has_read_is_confirmed(site: Site) -> None:
    set_mode(site, "armed")
    assert "something else than what you saw" in said(confirm(site, seen=""))
    assert services.get_mode(BOOK) is Mode.SHADOW


def test_a_second_person_rejects_it_with_a_reason(site: Site) -> None:
    set_mode(site, "armed")
    number = standing().pk
    assert "Say why" in said(services.reject_request(number, " ", actor="bob", now=site.now))
    no = services.reject_request(number, "not before the patch", actor="bob", now=site.now)
    assert isinstance(no, Controlled)
    assert "was rejected by bob" in said(confirm(site))
    assert AuditEntry.objects.filter(text__endswith="not before the patch").exists()


@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_what_holds_back_needs_one_person(site: Site, mode: str) -> None:
    site.set_mode(Mode.ARMED)
    assert isinstance(set_mode(site, mode), Controlled)
    assert isinstance(begin(site, mode="shadow") if mode == "shadow" else lower(site), Controlled)
    assert not SecondPersonRequest.objects.exists()


def lower(site: Site) -> Outcome:
    return services.set_mode("site", "off", actor="omar", now=site.now, world=site.world)


def test_a_preflight_that_objects_has_nobody_asked(site: Site) -> None:
    refused = services.set_mode(BOOK, "armed", actor="ada", now=site.now, world=None)
    assert "asked to make the preflight" in said(refused)
    assert not SecondPersonRequest.objects.exists()


def test_the_preflight_is_made_again_for_the_confirmation(site: Site) -> None:
    set_mode(site, "armed")
    request = standing()
    refused = services.confirm_request(
        request.pk, actor="bob", seen=requests.get_seen(request), now=site.now, world=None
    )
    assert "asked to make the preflight" in said(refused)
    assert standing().pk == request.pk


# Each with the kind of request that it makes; None: one person is enough.
WIDENING: list[tuple[str, Callable[[Site], Outcome], str | None]] = [
    ("to approval", lambda site: set_mode(site, "approval"), "widening"),
    ("to armed", lambda site: set_mode(site, "armed"), "arming"),
    ("a first arming", lambda site: begin(site, mode="armed"), "arming"),
    ("approval on two nodes", lambda site: begin(site), "widening"),
    ("off to shadow", lambda site: set_mode(site, "shadow", book="gpu_reset"), None),
    ("more nodes", lambda site: more_nodes(site), "widening"),
    ("longer on the same", lambda site: longer(site), "widening"),
    ("the end of what held back", lambda site: end_of(site, Mode.SHADOW, Mode.ARMED), "widening"),
    ("the end of what let go", lambda site: end_of(site, Mode.ARMED, Mode.SHADOW), None),
    ("the site let go", lambda site: let_site_go(site), "arming"),
    ("on again where an arming stands", lambda site: on_again(site), "arming"),
]


def more_nodes(site: Site) -> Outcome:
    arm(site)
    return begin(site, mode="armed", place="gn[001-005]")


def longer(site: Site) -> Outcome:
    row = arm(site)
    return begin(site, mode="armed", until=row.until + HOUR)


def end_of(site: Site, mode: Mode, own: Mode) -> Outcome:
    site.set_mode(own)
    row = arm(site, mode=mode)
    return services.end_arming(row.pk, "done", actor="ada", now=site.now)


def let_site_go(site: Site) -> Outcome:
    lower_the_site(site)
    return set_mode(site, "armed", book="site")


def on_again(site: Site) -> Outcome:
    arm(site)
    site.set_mode(Mode.OFF)
    return set_mode(site, "shadow")


@pytest.mark.parametrize(("name", "order", "kind"), WIDENING, ids=[row[0] for row in WIDENING])
def test_whatever_lets_a_runbook_go_further_is_asked_for(
    site: Site, name: str, order: Callable[[Site], Outcome], kind: str | None
) -> None:
    outcome = order(site)
    if kind is None:
        assert isinstance(outcome, Controlled), name
        return
    assert isinstance(outcome, AskedSecond), name
    assert standing().kind == kind
    assert isinstance(confirm(site), Controlled)


def test_a_site_may_want_two_for_arming_alone(site: Site, settings: Settings) -> None:
    only = {"KINTSUGI_SECOND_PERSON": frozenset({"arming"})}
    settings.KINTSUGI = {**settings.KINTSUGI, **only}
    assert isinstance(set_mode(site, "approval"), Controlled)
    assert isinstance(set_mode(site, "armed"), AskedSecond)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("database_on_disk")
class TestAtOnce:
    def test_two_who_confirm_at_once_arm_once(self, site: Site) -> None:
        an_account("eve")
        begin(site, mode="armed")
        request = standing()
        seen = requests.get_seen(request)
        found = at_once(
            [lambda who=who: confirm(site, who, seen=seen) for who in ("bob", "eve") * 2]  # type: ignore[misc]
        )
        assert [type(one) for one in found].count(Controlled) == 1
        assert Arming.objects.count() == 1

    def test_who_asks_many_times_at_once_has_asked_once(self, site: Site) -> None:
        found = at_once([lambda: set_mode(site, "armed")] * 4)
        assert [type(one) for one in found].count(AskedSecond) == 1
        assert standing().asked_by == "ada"

    def test_two_who_ask_at_once_have_asked_once_and_confirmed_nothing(self, site: Site) -> None:
        at_once([lambda who=who: set_mode(site, "armed", actor=who) for who in ("ada", "bob")])  # type: ignore[misc]
        assert SecondPersonRequest.objects.count() == 1
        assert services.get_mode(BOOK) is Mode.SHADOW

    def test_what_is_rejected_and_confirmed_at_once_is_one_of_them(self, site: Site) -> None:
        begin(site, mode="armed")
        request = standing()
        seen = requests.get_seen(request)
        no: Callable[[], Outcome] = lambda: services.reject_request(  # noqa: E731
            request.pk, "no", actor="ada", now=site.now
        )
        at_once([no, lambda: confirm(site, seen=seen)])
        request.refresh_from_db()
        assert Arming.objects.count() == (1 if request.ending == "confirmed" else 0)
