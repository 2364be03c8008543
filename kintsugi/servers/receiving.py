"""Builds the receiver from the settings and ties it to the inbox of the database. Decides
nothing."""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar
from zoneinfo import ZoneInfo

from django.conf import settings
from kombu.exceptions import OperationalError

from detectors.catalog import catalog
from detectors.logs.signatures import Matcher
from detectors.logs.unread import UnreadLine, UnreadReader
from detectors.receivers.connections import TlsError
from detectors.receivers.delivery import Backlog, InboxAway
from detectors.receivers.intake import Zones
from detectors.receivers.passed_sockets import PassedSocketError
from detectors.receivers.refusals import RefusedInput
from detectors.receivers.senders import LOOPBACK, Senders
from detectors.receivers.spool import Batch, Extent, Spool
from detectors.receivers.syslog import CannotListen, Receiver
from detectors.resources import short_host
from detectors.transports import error_text
from incidents.checks import refused_senders, unread_lines
from incidents.checks.heartbeats import PartBacklog
from incidents.models import Alias, Node, Switch
from incidents.triage import inbox
from kintsugi import clock, tasks
from kintsugi.configuration.setting_values import INVENTORY
from kintsugi.health import broker
from kintsugi.health.reporter import ProcessPart
from kintsugi.servers import database_reads, listeners
from kintsugi.servers.database_reads import DatabaseAway

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_NO_RELAYS = (
    "KINTSUGI_SYSLOG_RELAYS is unset: every accepted sender that is no machine of the inventory is"
    " believed whichever machine its lines name; list your log hosts, or say none"
)


def build_receiver() -> Receiver:
    """The one of this data directory. Raises SpoolError when another process holds it,
    AddressTaken."""
    directory: Path = settings.DATA_DIR / "spool"
    spool = Spool(directory)
    senders = partial(get_accepted_senders, directory / "senders.json")
    if settings.KINTSUGI["KINTSUGI_SYSLOG_RELAYS"] is None:
        _log.warning(_NO_RELAYS)
    try:
        openings = listeners.open_all(directory)
    except (PassedSocketError, listeners.AddressTaken, TlsError) as error:
        spool.close()
        raise listeners.AddressTaken(str(error)) from error
    readers = _Readers()
    inbox = DatabaseInbox()
    zones = _load_zones()
    return Receiver(
        matcher=readers.get_matcher,
        unread_reader=readers.make_unread_reader,
        spool=spool,
        inbox=inbox,
        senders=senders,
        zones=zones,
        now=clock.now,
        **openings,
        report_refusals=_record_refusals,
        report_unread=_record_unread,
    )


def _load_zones() -> Zones:
    names: dict[str, str] = settings.KINTSUGI["KINTSUGI_SYSLOG_TIME_ZONES"]
    return Zones({host: ZoneInfo(name) for host, name in names.items()})


class _Readers:
    """What the receiver reads lines by, made anew when the catalogue has changed. For the receiver
    alone: no two threads may match by one."""

    def __init__(self) -> None:
        self._catalog: catalog.Catalog | None = None
        self._matcher: Matcher | None = None

    def get_matcher(self) -> Matcher:
        current = catalog.load()
        if self._matcher is None or current is not self._catalog:
            self._catalog, self._matcher = current, Matcher(current)
        return self._matcher

    def make_unread_reader(self) -> UnreadReader:
        return UnreadReader(self.get_matcher())


def make_receiver_part(receiver: Receiver) -> ProcessPart:
    """What is told of this receiver."""
    return ProcessPart(
        "receiver",
        is_working=lambda: receiver.is_receiving,
        is_restart_a_cure=True,
        read_backlog=DeliveryWatch(receiver).read_backlog,
        directory=settings.DATA_DIR,
    )


class UndeliveredSpool(Protocol):
    """What is asked of a receiver (detectors.receivers.syslog.Receiver)."""

    @property
    def undelivered_bytes(self) -> int: ...
    @property
    def delivered(self) -> Extent | None: ...


class DeliveryWatch:
    """Since when a receiver has something to deliver and delivers nothing."""

    def __init__(self, receiver: UndeliveredSpool) -> None:
        self._receiver = receiver
        self._delivered: Extent | None = None
        self._since: datetime | None = None

    def read_backlog(self) -> PartBacklog:
        delivered, size = self._receiver.delivered, self._receiver.undelivered_bytes
        if not size or delivered != self._delivered:
            self._since = None
        elif self._since is None:
            self._since = clock.now()
        self._delivered = delivered
        return PartBacklog(size, self._since)


def run(receiver: Receiver) -> None:
    """Receives until it is stopped. Raises AddressTaken."""
    try:
        receiver.run()
    except CannotListen as error:
        host, port = settings.KINTSUGI["KINTSUGI_SYSLOG_LISTEN"]
        raise listeners.AddressTaken(
            f"KINTSUGI_SYSLOG_LISTEN={host}:{port}: {error}; choose another"
            f" ({listeners.describe_search(port)})"
        ) from error


def _record_refusals(refusals: Sequence[RefusedInput]) -> None:
    try:
        database_reads.ask(lambda: refused_senders.record(refusals))
    except DatabaseAway as error:
        _log.warning("whose syslog is refused cannot be recorded: %s", error)


def _record_unread(lines: Sequence[UnreadLine]) -> bool:
    """Whether they are in the database."""
    try:
        database_reads.ask(lambda: unread_lines.record(lines, clock.now()))
    except DatabaseAway as error:
        _log.warning("lines that no signature takes cannot be recorded yet: %s", error)
        return False
    return True


class DatabaseInbox:
    """The inbox of this site's database, and the `ingest` task as its doorbell."""

    def read_position(self, receiver: str) -> Extent | None:
        return self._ask(lambda: inbox.read_position(receiver))

    def put(self, receiver: str, batches: Sequence[Batch], after: Extent | None) -> None:
        self._ask(lambda: inbox.put(receiver, batches, after, now=clock.now()))

    def read_backlog(self) -> Backlog:
        return self._ask(lambda: inbox.read_backlog(clock.now()))

    def wake_worker(self) -> None:
        try:
            tasks.ingest.apply_async(retry=False)
        except (OperationalError, OSError) as error:
            broker.OUTAGE.begin(error_text.format_reason(error).rstrip("."))
        else:
            broker.OUTAGE.end()

    def _ask(self, question: Callable[[], _T]) -> _T:
        try:
            return database_reads.ask(question)
        except DatabaseAway as error:
            raise InboxAway(str(error)) from error


def _keep_hosts(cache: Path, hosts: Mapping[str, str]) -> None:
    """Whole or not at all: a disk that is full spoils nothing of what was kept, and keeps no
    receiver from its start."""
    fresh = cache.with_suffix(".new")
    try:
        fresh.write_text(json.dumps(hosts))
        fresh.replace(cache)
    except OSError as error:
        _log.warning(
            "%s cannot be written (%s): a start while the database is away goes by the senders of"
            " before",
            cache,
            error.strerror,
        )


def _read_kept_hosts(cache: Path) -> dict[str, str]:
    """Empty where nothing that can be read was kept: then loopback and the networks of the settings
    alone are let in."""
    try:
        hosts: dict[str, str] = json.loads(cache.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        _log.warning("%s cannot be read (%s): nobody is let in by it", cache, error)
        return {}
    return hosts


def get_accepted_senders(cache: Path) -> Senders:
    """The networks of the settings; where they are unset or name `inventory`, loopback and the
    inventory's addresses.

    A receiver must start while the database is away: then what was known last time is taken from
    `cache`.
    """
    listed: list[str] = settings.KINTSUGI["KINTSUGI_SYSLOG_NETWORKS"] or [INVENTORY]
    accepts_inventory = INVENTORY in listed
    networks = [network for network in listed if network != INVENTORY]
    if accepts_inventory:
        networks += LOOPBACK
    names: frozenset[str] | None = None
    switches: Collection[str] | None = None
    try:
        hosts = database_reads.ask(_read_inventory_addresses)
        switches = database_reads.ask(_list_switch_names)
        names = database_reads.ask(_read_inventory_names)
    except DatabaseAway as error:
        _log.warning(
            "the inventory cannot be read (%s); the senders known last time are accepted", error
        )
        hosts = _read_kept_hosts(cache)
    else:
        _keep_hosts(cache, hosts)
    own = socket.gethostname()
    hosts = {"127.0.0.1": own, "::1": own, **hosts}
    relays: list[str] | None = settings.KINTSUGI["KINTSUGI_SYSLOG_RELAYS"]
    udp = None
    if settings.KINTSUGI["KINTSUGI_SYSLOG_UDP"] == "switches":
        # While the database is away, all machines known last time: which are switches is not kept.
        known = hosts.values() if switches is None else switches
        udp = frozenset(address for address, name in hosts.items() if name in known)
    return Senders(
        networks=networks,
        hosts=hosts,
        accepts_hosts=accepts_inventory,
        relays=relays,
        names=names,
        datagram_hosts=udp,
    )


def _read_inventory_names() -> frozenset[str] | None:
    """By what its machines are called in lines: their names and aliases; None without any."""
    names: set[str] = set()
    for rows in (Node.objects.inventoried(), Switch.objects.inventoried()):
        names.update(rows.values_list("name", flat=True))
    if not names:
        return None
    names |= {socket.gethostname(), *Alias.objects.values_list("name", flat=True)}
    return frozenset(short_host(name) for name in names)


def _list_switch_names() -> list[str]:
    return list(Switch.objects.exclude(address="").values_list("name", flat=True))


def _read_inventory_addresses() -> dict[str, str]:
    """Host name by address; names in the inventory's address column are looked up."""
    hosts: dict[str, str] = {}
    for model in (Node, Switch):
        for name, address in model.objects.exclude(address="").values_list("name", "address"):
            for found in _resolve_addresses(address):
                hosts[found] = name
    return hosts


def _resolve_addresses(address: str) -> list[str]:
    try:
        return [str(ipaddress.ip_address(address))]
    except ValueError:
        pass
    try:
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(address, None)})
    except OSError:
        _log.warning(
            "the inventory's address %s has no entry in the name service; its datagrams are"
            " refused",
            address,
        )
        return []
