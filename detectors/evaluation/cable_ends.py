"""One cable judged from both of its ends: which end is suspect, the shared module, or that it
cannot be told.

An 800 GbE leaf module breaks out to two 400 GbE host ports: both bad means the module, one bad
never means unplugging the neighbour. Pure: observations of the node's `transceiver` and `nic` and
of the switch's `switch_snmp` go in, a sentence comes out; nothing is raised by it. Python 3.9,
standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Optional

from detectors import resources
from detectors.expected import ExpectedPort
from detectors.faults import Observation

# Where a module gives no threshold of its own, only the lack of light counts:
# catalog/polled_nic.toml, the same number.
NO_LIGHT_DBM = -30.0
_UP = frozenset({"nic.link.working", "nic.ib.link.working", "port.well"})
_ERRORS = frozenset({"nic.lost_per_s", "nic.ib.lost_per_s", "port.in_errors_per_second"})
# Now and then a frame breaks on any link: 120 an hour are too many, as in catalog/polled_nic.toml
# (IBTA).
_ERRORS_PER_S = 120 / 3600
LIGHT = "optics.light"
"""Of one port: the least that a lane in use receives and sends, and the limits of both, in dBm;
None: not known.

One value for each port, so that few samples are kept: what is judged together is polled at
different moments.
"""
OF_NODE_LINK = frozenset(
    {
        "nic.link.state",
        "nic.link.working",
        "nic.ib.link.working",
        *_ERRORS - {"port.in_errors_per_second"},
    }
)
OF_SWITCH_LINK = frozenset({"port.oper", "port.well", "port.in_errors_per_second"})


class LinkState(str, Enum):
    """What is made of one port's link."""

    UP = "up"
    FAILED = "failed"
    UNCABLED = "uncabled"
    DISABLED = "disabled"
    RESERVED = "reserved"
    UNKNOWN = "unknown"


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
    """What one end says: light by lane in dBm, both ways; whether errors arrive, and whether its
    link is up.

    None and empty mean that nothing is known. The lows are the module's own alarm thresholds where
    it has any.
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
        has_light = bool(self.rx_dbm or self.tx_dbm)
        return has_light or self.has_errors is not None or self.is_up is not None

    @property
    def receives_little(self) -> Optional[bool]:
        return _has_below(self.rx_low_dbm, self.rx_dbm)

    @property
    def sends_little(self) -> Optional[bool]:
        return _has_below(self.tx_low_dbm, self.tx_dbm)


def _has_below(limit: float, values: Mapping[str, float]) -> Optional[bool]:
    """Whether one of them is below the limit; None where there are none."""
    if not values:
        return None
    return any(value < limit for value in values.values())


@dataclass(frozen=True)
class Pair:
    """One cable: its node's end and its switch's end."""

    node: End
    switch: End

    @property
    def is_bad(self) -> bool:
        if self.is_down:
            return True
        ends = (self.node, self.switch)
        return any(end.receives_little or end.sends_little or end.has_errors for end in ends)

    @property
    def is_down(self) -> bool:
        return self.node.is_up is False or self.switch.is_up is False


@dataclass(frozen=True)
class Finding:
    """`resource` is what to look at, empty where it cannot be told; `spare` are ports that must not
    be disturbed."""

    suspect: Suspect
    resource: str
    text: str
    spare: tuple[str, ...] = ()


def end(resource: str, observations: Iterable[Observation]) -> End:
    """The end that these observations speak of; those of other resources are passed over."""
    own = [observation for observation in observations if observation.resource == resource]
    is_up, is_shut = _read_link(own)
    has_errors = _has_errors(own)
    return replace(_read_light(resource, own), has_errors=has_errors, is_up=is_up, is_shut=is_shut)


def _read_light(resource: str, observations: Sequence[Observation]) -> End:
    """The end with its light and the limits of it, and nothing else yet."""
    optics = End(resource)
    rx_by_lane: dict[str, float] = {}
    tx_by_lane: dict[str, float] = {}
    for observation in observations:
        lane = observation.attributes.get("lane", "")
        if observation.metric == LIGHT:
            optics = _add_light(optics, observation.value)
        elif observation.metric in ("nic.module.rx_power_dbm", "nic.module.tx_power_dbm"):
            optics = _add_limit(optics, observation)
        elif not _is_number(observation.value):
            continue
        elif observation.metric == "optics.rx_power_dbm":
            rx_by_lane[lane] = float(observation.value)
        elif observation.metric == "optics.tx_power_dbm":
            tx_by_lane[lane] = float(observation.value)
    rx = {**optics.rx_dbm, **rx_by_lane}
    tx = {**optics.tx_dbm, **tx_by_lane}
    return replace(optics, rx_dbm=_get_lanes_in_use(rx, tx), tx_dbm=_get_lanes_in_use(tx, rx))


def _read_link(observations: Sequence[Observation]) -> tuple[Optional[bool], bool]:
    """Whether the link is up, and whether it is switched off by configuration."""
    is_up: Optional[bool] = None
    is_shut = False
    oper = ""
    for observation in observations:
        if observation.metric in _UP and isinstance(observation.value, bool):
            is_up = observation.value
        elif observation.metric == "nic.link.state":
            is_shut = observation.value == LinkState.DISABLED.value
        elif observation.metric == "port.oper":
            oper = str(observation.value)
    if oper not in ("", "up") and is_up:  # a port that is not up and well all the same
        return None, True
    return is_up, is_shut


def _has_errors(observations: Sequence[Observation]) -> Optional[bool]:
    rates = [
        observation.value
        for observation in observations
        if observation.metric in _ERRORS and _is_number(observation.value)
    ]
    if not rates:
        return None
    return any(rate > _ERRORS_PER_S for rate in rates)


def observe_light(observations: Sequence[Observation]) -> Iterator[Observation]:
    """`optics.light` of each port whose module has told of light in this round."""
    of_light = (
        "optics.rx_power_dbm",
        "optics.tx_power_dbm",
        "nic.module.rx_power_dbm",
        "nic.module.tx_power_dbm",
    )
    by_resource: dict[str, list[Observation]] = {}
    for observation in observations:
        if observation.metric in of_light:
            by_resource.setdefault(observation.resource, []).append(observation)
    for resource, readings in by_resource.items():
        optics = end(resource, readings)
        least_rx = min(optics.rx_dbm.values(), default=None)
        least_tx = min(optics.tx_dbm.values(), default=None)
        values = [least_rx, least_tx, optics.rx_low_dbm, optics.tx_low_dbm]
        yield Observation(resource, LIGHT, values, readings[-1].observed_at)


def _add_light(optics: End, value: object) -> End:
    if not isinstance(value, (list, tuple)) or len(value) != 4:
        return optics
    rx, tx = ({"": float(power)} if _is_number(power) else {} for power in value[:2])
    rx_low, tx_low = (float(limit) if _is_number(limit) else NO_LIGHT_DBM for limit in value[2:])
    return replace(optics, rx_dbm=rx, tx_dbm=tx, rx_low_dbm=rx_low, tx_low_dbm=tx_low)


def _add_limit(optics: End, observation: Observation) -> End:
    try:
        limit = float(observation.attributes["raise_at"])
    except (KeyError, ValueError):
        return optics
    if "rx_power" in observation.metric:
        return replace(optics, rx_low_dbm=limit)
    return replace(optics, tx_low_dbm=limit)


def _get_lanes_in_use(values: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    """Without the lanes that have no light in either direction, while others of the module do: they
    are not in use."""
    lanes = {*values, *others}
    powers = {lane: max(values.get(lane, -99), others.get(lane, -99)) for lane in lanes}
    lit = {lane for lane, power in powers.items() if power > NO_LIGHT_DBM}
    return {lane: value for lane, value in values.items() if lane in lit or not lit}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def find_suspects(
    switch: str, ports: Sequence[ExpectedPort], observations: Sequence[Observation]
) -> Iterator[tuple[Pair, Finding]]:
    """Each bad cable between nodes and one switch, judged with the other cables of its module.

    `ports` are the switch's own by the inventory, with far ends and modules; `observations` those
    of all ends.
    """
    by_resource: dict[str, list[Observation]] = {}
    for observation in observations:
        by_resource.setdefault(observation.resource, []).append(observation)
    pairs: dict[str, Pair] = {}
    for port in ports:
        if port.peer.startswith("node/"):
            near = resources.port(switch, port.name)
            node_end = end(port.peer, by_resource.get(port.peer, ()))
            switch_end = end(near, by_resource.get(near, ()))
            pairs[port.name] = Pair(node_end, switch_end)
    modules = {port.name: port.module for port in ports if port.name in pairs and port.module}
    for name, pair in pairs.items():
        if not pair.is_bad:
            continue
        module = modules.get(name, "")
        names = [other for other, shared in modules.items() if shared == module and other != name]
        siblings = [pairs[other] for other in names]
        yield pair, evaluate_cable(pair, siblings=siblings, module=_get_module_path(switch, module))


def _get_module_path(switch: str, module: str) -> str:
    return module if not module or "/" in module else resources.module(switch, module)


def evaluate_cable(cable: Pair, *, siblings: Sequence[Pair] = (), module: str = "") -> Finding:
    """`siblings` are the other cables of the switch's module, `module` its resource path."""
    if not cable.is_bad:
        return _make_good_finding(cable)
    shut = _evaluate_shut(cable)
    if shut is None:
        shared = _evaluate_siblings(cable, siblings, module)
        if shared is not None:
            return shared
    finding = shut or _evaluate_light(cable) or _evaluate_errors(cable) or _evaluate_link(cable)
    spare = tuple(sorted(sibling.switch.resource for sibling in siblings if not sibling.is_bad))
    if not spare:
        return finding
    verb = "works" if len(spare) == 1 else "work"
    warning = f" {_names(spare)} on the same module {verb}: leave it plugged in."
    return replace(finding, text=finding.text + warning, spare=spare)


def _make_good_finding(cable: Pair) -> Finding:
    unknown = [end.resource for end in (cable.node, cable.switch) if not end.is_known]
    if unknown:
        return Finding(
            Suspect.NOT_TOLD,
            "",
            f"Nothing is known of {_names(unknown)}, and nothing is wrong elsewhere.",
        )
    return Finding(Suspect.NOTHING, "", "Light, errors and link are well at both ends.")


def _evaluate_siblings(cable: Pair, siblings: Sequence[Pair], module: str) -> Optional[Finding]:
    """All cables of the module bad in the same way, which no laser of the nodes explains."""
    pairs = [cable, *siblings]
    if len(pairs) < 2:
        return None
    reason = _find_shared_reason(pairs)
    if not reason:
        return None
    ports = _names(sorted(pair.switch.resource for pair in pairs))
    text = f"{ports} share one module, and {reason}: the module is suspect, not one of the cables."
    return Finding(Suspect.SHARED_MODULE, module, f"{module}: {text}" if module else text)


def _find_shared_reason(pairs: Sequence[Pair]) -> str:
    """In which way all of these cables are bad; empty where they are not bad alike."""
    nodes = [pair.node for pair in pairs]
    ports = [pair.switch for pair in pairs]
    if all(port.sends_little for port in ports):
        return "its lasers send too little light to each of them"
    if all(node.receives_little for node in nodes):
        return "each of their nodes receives too little light from it"
    is_explained_by_laser = any(node.sends_little for node in nodes)
    if not is_explained_by_laser and all(port.receives_little for port in ports):
        return "it receives too little light on each of them"
    if all(node.has_errors for node in nodes):
        return "errors arrive from it at each of their nodes"
    if all(port.has_errors for port in ports):
        return "errors arrive at each of its ports"
    if not is_explained_by_laser and all(pair.is_down for pair in pairs):
        return "all of their links are down"
    return ""


def _evaluate_shut(cable: Pair) -> Optional[Finding]:
    shut = [end.resource for end in (cable.node, cable.switch) if end.is_shut]
    if not shut:
        return None
    verb = "are" if len(shut) > 1 else "is"
    text = (
        f"{_names(shut)} {verb} switched off by configuration: neither light nor link says anything"
        " of the parts."
    )
    return Finding(Suspect.NOT_TOLD, "", text)


def _evaluate_light(cable: Pair) -> Optional[Finding]:
    node, switch = cable.node, cable.switch
    if node.sends_little and switch.sends_little:
        text = (
            "Both ends send too little light. Two lasers rarely fail at once: see whether both"
            " ports are switched on."
        )
        return Finding(Suspect.NOT_TOLD, "", text)
    for sender, suspect in ((node, Suspect.NODE_END), (switch, Suspect.SWITCH_END)):
        if sender.sends_little:
            return Finding(
                suspect,
                sender.resource,
                f"{sender.resource} sends too little light: its laser is failing.",
            )
    if node.receives_little and switch.receives_little:
        sent = _format_sent(node, switch)
        text = f"{sent}, and neither receives enough: the fibre or its connectors."
        return Finding(Suspect.FIBRE if _is_sent_by_both(cable) else Suspect.NOT_TOLD, "", text)
    for receiver, sender in ((node, switch), (switch, node)):
        if receiver.receives_little:
            return _make_cable_finding(receiver, sender)
    return None


def _is_sent_by_both(cable: Pair) -> bool:
    return cable.node.sends_little is False and cable.switch.sends_little is False


def _format_sent(node: End, switch: End) -> str:
    unknown = [end.resource for end in (node, switch) if end.sends_little is None]
    if unknown:
        return f"What {_names(unknown)} sends is not known"
    return "Both ends send enough light"


def _make_cable_finding(receiver: End, sender: End) -> Finding:
    if sender.sends_little is None:
        text = (
            f"{receiver.resource} receives too little light, and nothing tells what"
            f" {sender.resource} sends."
        )
        return Finding(Suspect.NOT_TOLD, "", text)
    text = (
        f"{sender.resource} sends enough light and {receiver.resource} receives too little: clean"
        f" and check the fibre and the connector at {receiver.resource}; if that does not help, the"
        " module there."
    )
    return Finding(Suspect.FIBRE, receiver.resource, text)


def _evaluate_errors(cable: Pair) -> Optional[Finding]:
    node, switch = cable.node, cable.switch
    if node.has_errors and switch.has_errors:
        return Finding(
            Suspect.NOT_TOLD,
            "",
            "Errors arrive at both ends in good light: cable and both modules are suspect.",
        )
    for receiver, sender in ((node, switch), (switch, node)):
        if receiver.has_errors:
            text = f"Errors arrive at {receiver.resource}, whose light is not the cause: "
            text += (
                f"what {sender.resource} sends or how {receiver.resource} receives it. Swap one"
                " module to tell."
            )
            return Finding(Suspect.NOT_TOLD, "", text)
    return None


def _evaluate_link(cable: Pair) -> Finding:
    for lame, far in ((cable.node, cable.switch), (cable.switch, cable.node)):
        if lame.is_up is False and far.is_up is True:
            text = (
                f"{lame.resource} has no link while {far.resource} says it has: look there again."
            )
            return Finding(Suspect.NOT_TOLD, "", text)
    ends = _names([cable.node.resource, cable.switch.resource])
    return Finding(
        Suspect.NOT_TOLD, "", f"The link between {ends} is down, and nothing tells at which end."
    )


def _names(resources: Sequence[str]) -> str:
    return " and ".join(resources)
