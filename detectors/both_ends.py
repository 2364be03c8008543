"""One cable judged from both of its ends: which end is suspect, the shared module, or that it cannot be told.

An 800 GbE leaf module breaks out to two 400 GbE host ports: both bad means the module, one bad never means unplugging
the neighbour. Pure: observations of the node's `transceiver` and `nic` and of the switch's `switch_snmp` go in, a
sentence comes out; nothing is raised by it. Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Optional

from detectors import resources
from detectors.expected import ExpectedPort
from detectors.faults import Observation
from detectors.nic_link import State

# Where a module gives no threshold of its own, only the lack of light counts: catalog/polled_nic.toml, the same number.
NO_LIGHT_DBM = -30.0
_UP = frozenset({"nic.link.working", "nic.ib.link.working", "port.well"})
_ERRORS = frozenset({"nic.lost_per_s", "nic.ib.lost_per_s", "port.in_errors_per_second"})
# Now and then a frame breaks on any link: 120 an hour are too many, as in catalog/polled_nic.toml (IBTA).
_ERRORS_PER_S = 120 / 3600
LIGHT = "optics.light"
"""Of one port: the least that a lane in use receives and sends, and the limits of both, in dBm; None: not known.

One value for each port, so that few samples are kept: what is judged together is polled at different moments.
"""
OF_NODE_LINK = frozenset(
    {"nic.link.state", "nic.link.working", "nic.ib.link.working", *_ERRORS - {"port.in_errors_per_second"}}
)
OF_SWITCH_LINK = frozenset({"port.oper", "port.well", "port.in_errors_per_second"})


class Suspect(str, Enum):
    """Where to look."""

    NOTHING = "nothing"
    NODE_END = "node end"
    SWITCH_END = "switch end"
    FIBRE = "fibre"
    SHARED_MODULE = "shared module"
    NOT_TOLD = "not told"


@dataclass(frozen=True)
class End:
    """What one end says: light by lane in dBm, both ways; whether errors arrive, and whether its link is up.

    None and empty mean that nothing is known. The lows are the module's own alarm thresholds where it has any.
    """

    resource: str
    rx_dbm: Mapping[str, float] = field(default_factory=dict)
    tx_dbm: Mapping[str, float] = field(default_factory=dict)
    rx_low_dbm: float = NO_LIGHT_DBM
    tx_low_dbm: float = NO_LIGHT_DBM
    has_errors: Optional[bool] = None
    is_up: Optional[bool] = None
    is_shut: bool = False
    """Switched off by its own configuration, so that its darkness says nothing of its laser."""

    @property
    def is_known(self) -> bool:
        return bool(self.rx_dbm or self.tx_dbm) or self.has_errors is not None or self.is_up is not None

    @property
    def receives_little(self) -> Optional[bool]:
        return any(value < self.rx_low_dbm for value in self.rx_dbm.values()) if self.rx_dbm else None

    @property
    def sends_little(self) -> Optional[bool]:
        return any(value < self.tx_low_dbm for value in self.tx_dbm.values()) if self.tx_dbm else None


@dataclass(frozen=True)
class Pair:
    """One cable: its node's end and its switch's end."""

    node: End
    switch: End

    @property
    def is_bad(self) -> bool:
        return bool(
            self.node.receives_little
            or self.node.sends_little
            or self.switch.receives_little
            or self.switch.sends_little
            or self.node.has_errors
            or self.switch.has_errors
            or self.is_down
        )

    @property
    def is_down(self) -> bool:
        return self.node.is_up is False or self.switch.is_up is False


@dataclass(frozen=True)
class Finding:
    """`resource` is what to look at, empty where it cannot be told; `spare` are ports that must not be disturbed."""

    suspect: Suspect
    resource: str
    text: str
    spare: tuple[str, ...] = ()


def end(resource: str, observations: Iterable[Observation]) -> End:
    """The end that these observations speak of; those of other resources are passed over."""
    found, oper = End(resource), ""
    rx: dict[str, float] = {}
    tx: dict[str, float] = {}
    for seen in observations:
        if seen.resource != resource:
            continue
        lane = seen.attributes.get("lane", "")
        if seen.metric == LIGHT:
            found = _with_light(found, seen.value)
        elif seen.metric == "optics.rx_power_dbm" and _is_number(seen.value):
            rx[lane] = float(seen.value)
        elif seen.metric == "optics.tx_power_dbm" and _is_number(seen.value):
            tx[lane] = float(seen.value)
        elif seen.metric in ("nic.module.rx_power_dbm", "nic.module.tx_power_dbm"):
            found = _with_limit(found, seen)
        elif seen.metric in _UP and isinstance(seen.value, bool):
            found = replace(found, is_up=seen.value)
        elif seen.metric == "nic.link.state":
            found = replace(found, is_shut=seen.value == State.DISABLED.value)
        elif seen.metric == "port.oper":
            oper = str(seen.value)
        elif seen.metric in _ERRORS and _is_number(seen.value):
            found = replace(found, has_errors=bool(found.has_errors) or seen.value > _ERRORS_PER_S)
    if oper not in ("", "up") and found.is_up:  # a port that is not up and well all the same
        found = replace(found, is_up=None, is_shut=True)
    rx, tx = {**found.rx_dbm, **rx}, {**found.tx_dbm, **tx}
    return replace(found, rx_dbm=_in_use(rx, tx), tx_dbm=_in_use(tx, rx))


def light(observations: Sequence[Observation]) -> Iterator[Observation]:
    """`optics.light` of each port whose module has told of light in this round."""
    of_light = ("optics.rx_power_dbm", "optics.tx_power_dbm", "nic.module.rx_power_dbm", "nic.module.tx_power_dbm")
    told: dict[str, list[Observation]] = {}
    for seen in observations:
        if seen.metric in of_light:
            told.setdefault(seen.resource, []).append(seen)
    for resource, those in told.items():
        found = end(resource, those)
        rx, tx = min(found.rx_dbm.values(), default=None), min(found.tx_dbm.values(), default=None)
        yield Observation(resource, LIGHT, [rx, tx, found.rx_low_dbm, found.tx_low_dbm], those[-1].observed_at)


def _with_light(found: End, value: object) -> End:
    if not isinstance(value, (list, tuple)) or len(value) != 4:
        return found
    rx, tx = ({"": float(each)} if _is_number(each) else {} for each in value[:2])
    rx_low, tx_low = (float(each) if _is_number(each) else NO_LIGHT_DBM for each in value[2:])
    return replace(found, rx_dbm=rx, tx_dbm=tx, rx_low_dbm=rx_low, tx_low_dbm=tx_low)


def _with_limit(found: End, seen: Observation) -> End:
    try:
        limit = float(seen.attributes["raise_at"])
    except (KeyError, ValueError):
        return found
    return replace(found, rx_low_dbm=limit) if "rx_power" in seen.metric else replace(found, tx_low_dbm=limit)


def _in_use(values: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    """Without the lanes that have no light in either direction, while others of the module do: they are not in use."""
    lit = {lane for lane in {*values, *others} if max(values.get(lane, -99), others.get(lane, -99)) > NO_LIGHT_DBM}
    return {lane: value for lane, value in values.items() if lane in lit or not lit}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def suspects(
    switch: str, ports: Sequence[ExpectedPort], observations: Sequence[Observation]
) -> Iterator[tuple[Pair, Finding]]:
    """Each bad cable between nodes and one switch, judged with the other cables of its module.

    `ports` are the switch's own by the inventory, with far ends and modules; `observations` those of all ends.
    """
    by_resource: dict[str, list[Observation]] = {}
    for seen in observations:
        by_resource.setdefault(seen.resource, []).append(seen)
    pairs: dict[str, Pair] = {}
    for port in ports:
        if port.peer.startswith("node/"):
            near = resources.port(switch, port.name)
            node = end(port.peer, by_resource.get(port.peer, ()))
            pairs[port.name] = Pair(node, end(near, by_resource.get(near, ())))
    modules = {port.name: port.module for port in ports if port.name in pairs and port.module}
    for name, pair in pairs.items():
        if pair.is_bad:
            module = modules.get(name, "")
            siblings = [pairs[other] for other, its in modules.items() if other != name and its == module]
            yield pair, judged(pair, siblings=siblings, module=_module_path(switch, module))


def _module_path(switch: str, module: str) -> str:
    return module if not module or "/" in module else resources.module(switch, module)


def judged(cable: Pair, *, siblings: Sequence[Pair] = (), module: str = "") -> Finding:
    """`siblings` are the other cables of the switch's module, `module` its resource path."""
    spare = tuple(sorted(sibling.switch.resource for sibling in siblings if not sibling.is_bad))
    if not cable.is_bad:
        return _well(cable)
    shut = _by_shut(cable)
    shared = _shared(cable, siblings, module) if shut is None else None
    if shared is not None:
        return shared
    found = shut or _by_light(cable) or _by_errors(cable) or _by_link(cable)
    if spare:
        warning = f" {_names(spare)} on the same module {'works' if len(spare) == 1 else 'work'}: leave it plugged in."
        found = replace(found, text=found.text + warning, spare=spare)
    return found


def _well(cable: Pair) -> Finding:
    unknown = [end.resource for end in (cable.node, cable.switch) if not end.is_known]
    if unknown:
        return Finding(Suspect.NOT_TOLD, "", f"Nothing is known of {_names(unknown)}, and nothing is wrong elsewhere.")
    return Finding(Suspect.NOTHING, "", "Light, errors and link are well at both ends.")


def _shared(cable: Pair, siblings: Sequence[Pair], module: str) -> Optional[Finding]:
    """All cables of the module bad in the same way, which no laser of the nodes explains."""
    pairs = [cable, *siblings]
    if len(pairs) < 2:
        return None
    kinds: Mapping[str, Sequence[Optional[bool]]] = {
        "its lasers send too little light to each of them": [pair.switch.sends_little for pair in pairs],
        "each of their nodes receives too little light from it": [pair.node.receives_little for pair in pairs],
        "it receives too little light on each of them": [
            pair.switch.receives_little and not pair.node.sends_little for pair in pairs
        ],
        "errors arrive from it at each of their nodes": [pair.node.has_errors for pair in pairs],
        "errors arrive at each of its ports": [pair.switch.has_errors for pair in pairs],
        "all of their links are down": [pair.is_down and not pair.node.sends_little for pair in pairs],
    }
    ports = _names(sorted(pair.switch.resource for pair in pairs))
    for reason, is_so in kinds.items():
        if all(is_so):
            where = module or f"the module of {ports}"
            text = f"{ports} share one module, and {reason}: the module is suspect, not one of the cables."
            return Finding(Suspect.SHARED_MODULE, module, f"{where}: {text}" if module else text)
    return None


def _by_shut(cable: Pair) -> Optional[Finding]:
    shut = [end.resource for end in (cable.node, cable.switch) if end.is_shut]
    if not shut:
        return None
    verb = "are" if len(shut) > 1 else "is"
    text = f"{_names(shut)} {verb} switched off by configuration: neither light nor link says anything of the parts."
    return Finding(Suspect.NOT_TOLD, "", text)


def _by_light(cable: Pair) -> Optional[Finding]:
    node, switch = cable.node, cable.switch
    if node.sends_little and switch.sends_little:
        text = (
            "Both ends send too little light. Two lasers rarely fail at once: see whether both ports are switched on."
        )
        return Finding(Suspect.NOT_TOLD, "", text)
    for sender, suspect in ((node, Suspect.NODE_END), (switch, Suspect.SWITCH_END)):
        if sender.sends_little:
            return Finding(suspect, sender.resource, f"{sender.resource} sends too little light: its laser is failing.")
    if node.receives_little and switch.receives_little:
        text = f"{_sent(node, switch)}, and neither receives enough: the fibre or its connectors."
        return Finding(Suspect.FIBRE if _both_send(cable) else Suspect.NOT_TOLD, "", text)
    for receiver, sender in ((node, switch), (switch, node)):
        if receiver.receives_little:
            return _lost_on_the_way(receiver, sender)
    return None


def _both_send(cable: Pair) -> bool:
    return cable.node.sends_little is False and cable.switch.sends_little is False


def _sent(node: End, switch: End) -> str:
    unknown = [end.resource for end in (node, switch) if end.sends_little is None]
    return f"What {_names(unknown)} sends is not known" if unknown else "Both ends send enough light"


def _lost_on_the_way(receiver: End, sender: End) -> Finding:
    if sender.sends_little is None:
        text = f"{receiver.resource} receives too little light, and nothing tells what {sender.resource} sends."
        return Finding(Suspect.NOT_TOLD, "", text)
    text = (
        f"{sender.resource} sends enough light and {receiver.resource} receives too little: clean and check the fibre "
        f"and the connector at {receiver.resource}; if that does not help, the module there."
    )
    return Finding(Suspect.FIBRE, receiver.resource, text)


def _by_errors(cable: Pair) -> Optional[Finding]:
    node, switch = cable.node, cable.switch
    if node.has_errors and switch.has_errors:
        return Finding(
            Suspect.NOT_TOLD, "", "Errors arrive at both ends in good light: cable and both modules are suspect."
        )
    for receiver, sender in ((node, switch), (switch, node)):
        if receiver.has_errors:
            text = f"Errors arrive at {receiver.resource}, whose light is not the cause: "
            text += f"what {sender.resource} sends or how {receiver.resource} receives it. Swap one module to tell."
            return Finding(Suspect.NOT_TOLD, "", text)
    return None


def _by_link(cable: Pair) -> Finding:
    for lame, far in ((cable.node, cable.switch), (cable.switch, cable.node)):
        if lame.is_up is False and far.is_up is True:
            text = f"{lame.resource} has no link while {far.resource} says it has: look there again."
            return Finding(Suspect.NOT_TOLD, "", text)
    ends = _names([cable.node.resource, cable.switch.resource])
    return Finding(Suspect.NOT_TOLD, "", f"The link between {ends} is down, and nothing tells at which end.")


def _names(resources: Sequence[str]) -> str:
    return " and ".join(resources)
