"""Builds the receiver from the settings and ties it to the ingest queue and the database's marks. Decides nothing."""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import Error, close_old_connections, connection
from django.db.models import Q
from kombu.exceptions import OperationalError

from detectors import catalog
from detectors.detector import TargetKind
from detectors.receivers.intake import Zones
from detectors.receivers.redelivery import CommittedUnknown, OfferError
from detectors.receivers.senders import LOOPBACK, Senders
from detectors.receivers.snmptrap import Known, TrapListener
from detectors.receivers.spool import Batch, Extent, Spool
from detectors.receivers.syslog import Door, Listen, Receiver
from detectors.receivers.trap_engine import TrapKeys
from detectors.signatures import Matcher
from incidents.models import Node, Port, SpoolMark, Switch
from kintsugi import clock, tasks, wiring
from kintsugi.credentials import Group

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def receiver() -> Receiver:
    """The one of this data directory. Raises SpoolError when another process holds it, AddressTaken."""
    host, port = settings.KINTSUGI["KINTSUGI_SYSLOG_LISTEN"]
    directory: Path = settings.DATA_DIR / "spool"
    zones = {host: ZoneInfo(zone) for host, zone in settings.KINTSUGI["KINTSUGI_SYSLOG_TIME_ZONES"].items()}
    spool = Spool(directory)
    try:
        doors = _doors(directory)
    except AddressTaken:
        spool.close()
        raise
    return Receiver(
        matcher=lambda: Matcher(catalog.load()),
        spool=spool,
        ledger=QueueAndMarks(),
        listen=Listen(host, port),
        senders=lambda: accepted_senders(directory / "senders.json"),
        zones=Zones(zones),
        now=clock.now,
        doors=doors,
    )


class AddressTaken(Exception):
    """An address of the settings cannot be listened on: names the setting, and says why."""


def _doors(directory: Path) -> tuple[Door, ...]:
    """SNMP notifications, where the site wants them. Raises AddressTaken."""
    address: tuple[str, int] | None = settings.KINTSUGI["KINTSUGI_TRAP_LISTEN"]
    if address is None:
        return ()
    last = Known()

    def known() -> Known:
        nonlocal last
        try:
            last = _from_database(_known_of_traps)
        except CommittedUnknown as error:
            _log.warning("the inventory cannot be read (%s); notifications are judged by what was known last", error)
        return last

    try:
        return (TrapListener(address, directory=directory, known=known, catalog=catalog.load(), now=clock.now),)
    except OSError as error:
        raise AddressTaken(
            f"KINTSUGI_TRAP_LISTEN={address[0]}:{address[1]}: {error.strerror}; choose another, or unset it"
        ) from error


def _known_of_traps() -> Known:
    """Switches' SNMP credentials, their engine ids, the names of nodes and of switch ports."""
    groups = wiring.credentials().groups
    keys = tuple(dict.fromkeys(group.snmp for group in groups if group.snmp and TargetKind.SWITCH in _kinds(group)))
    engines = Switch.objects.exclude(snmp_engine_id="").values_list("snmp_engine_id", flat=True)
    ports: dict[str, set[str]] = {}
    for switch, port in Port.objects.values_list("switch__name", "name"):
        ports.setdefault(switch, set()).add(port)
    return Known(
        TrapKeys(keys, tuple(sorted(engines))),
        frozenset(Node.objects.values_list("name", flat=True)),
        {switch: frozenset(names) for switch, names in ports.items()},
    )


def _kinds(group: Group) -> set[TargetKind]:
    return {kind for kind, names in group.named.items() if names}


class QueueAndMarks:
    """The `ingest` task's queue, and the marks that its transactions leave."""

    def offer(self, batch: Batch) -> None:
        extent = batch.extent
        try:
            tasks.ingest.apply_async(
                (batch.wires, (batch.receiver, extent.segment, extent.start, extent.end)), retry=False
            )
        except (OperationalError, OSError) as error:
            raise OfferError(str(error) or type(error).__name__) from error

    def committed(self, receiver: str, prefixes: Mapping[int, int]) -> Sequence[Extent]:
        wanted = Q(pk__in=())
        for segment, start in prefixes.items():
            wanted |= Q(segment=segment, start__gte=start)
        marks = SpoolMark.objects.filter(wanted, receiver=receiver)
        return _from_database(lambda: [Extent(*row) for row in marks.values_list("segment", "start", "end")])

    def released(self, receiver: str, segments: Sequence[int]) -> None:
        _from_database(SpoolMark.objects.filter(receiver=receiver, segment__in=segments).delete)


def accepted_senders(cache: Path) -> Senders:
    """The networks of the settings, or loopback and the inventory's addresses.

    A receiver must start while the database is away: then what was known last time is taken from `cache`.
    """
    networks: list[str] = settings.KINTSUGI["KINTSUGI_SYSLOG_NETWORKS"] or []
    try:
        hosts = _from_database(_inventory_addresses)
    except CommittedUnknown as error:
        _log.warning("the inventory cannot be read (%s); the senders known last time are accepted", error)
        hosts = json.loads(cache.read_text()) if cache.exists() else {}
    else:
        cache.write_text(json.dumps(hosts))
    own = socket.gethostname()
    hosts = {"127.0.0.1": own, "::1": own, **hosts}
    return Senders(networks=networks or LOOPBACK, hosts=hosts, accepts_hosts=not networks)


def _inventory_addresses() -> dict[str, str]:
    """Host name by address; names in the inventory's address column are looked up."""
    hosts: dict[str, str] = {}
    for model in (Node, Switch):
        for name, address in model.objects.exclude(address="").values_list("name", "address"):
            for found in _addresses(address):
                hosts[found] = name
    return hosts


def _addresses(address: str) -> list[str]:
    try:
        return [str(ipaddress.ip_address(address))]
    except ValueError:
        pass
    try:
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(address, None)})
    except OSError:
        _log.warning("the inventory's address %s has no entry in the name service; its datagrams are refused", address)
        return []


def _from_database(ask: Callable[[], _T]) -> _T:
    """Asks on a healthy connection of this thread. Raises CommittedUnknown with the database's words."""
    close_old_connections()
    try:
        return ask()
    except Error as error:
        connection.close()
        raise CommittedUnknown(str(error).strip() or type(error).__name__) from error
