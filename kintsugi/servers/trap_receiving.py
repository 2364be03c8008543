"""Builds the listener for SNMP notifications from the credentials and the inventory.

Only a receiver that listens for them loads it: the engine beneath takes long to import.
"""

from __future__ import annotations

import logging
from pathlib import Path

from detectors.catalog import catalog
from detectors.detector import TargetKind
from detectors.receivers.snmptrap import TrapListener, TrapSenders
from detectors.receivers.trap_engine import TrapKeys
from incidents.models import Node, Port, Switch
from kintsugi import clock
from kintsugi.clients import wiring
from kintsugi.clients.credentials import CredentialGroup
from kintsugi.servers import database_reads
from kintsugi.servers.database_reads import DatabaseAway

_log = logging.getLogger(__name__)


def open_listener(address: tuple[str, int], directory: Path) -> TrapListener:
    """Raises OSError when the address cannot be listened on."""
    last = TrapSenders()

    def known() -> TrapSenders:
        nonlocal last
        try:
            last = database_reads.ask(read_known)
        except DatabaseAway as error:
            _log.warning(
                "the inventory cannot be read (%s); notifications are judged by what was known"
                " last",
                error,
            )
        return last

    return TrapListener(
        address, directory=directory, known=known, catalog=catalog.load(), now=clock.now
    )


def read_known() -> TrapSenders:
    """Switches' SNMP credentials, their engine ids, the names of nodes and of switch ports."""
    groups = wiring.read_credentials().groups
    for_switches = [group for group in groups if TargetKind.SWITCH in _get_kinds(group)]
    keys = dict.fromkeys(group.snmp for group in for_switches if group.snmp)
    engines = Switch.objects.exclude(snmp_engine_id="").values_list("snmp_engine_id", flat=True)
    nodes = Node.objects.values_list("name", flat=True)
    trap_keys = TrapKeys(tuple(keys), tuple(sorted(engines)))
    return TrapSenders(trap_keys, frozenset(nodes), _read_port_names())


def _read_port_names() -> dict[str, frozenset[str]]:
    ports: dict[str, set[str]] = {}
    for switch, port in Port.objects.values_list("switch__name", "name"):
        ports.setdefault(switch, set()).add(port)
    return {switch: frozenset(names) for switch, names in ports.items()}


def _get_kinds(group: CredentialGroup) -> set[TargetKind]:
    return {kind for kind, names in group.named.items() if names}
