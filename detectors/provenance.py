"""Who said so: what is known of where an event comes from, and who could have forged it.

Pure: values and their words. Runs on compute nodes: Python 3.9 and the standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Optional

# RFC 5424, section 6.2.1, table 1.
FACILITIES = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron"),
    *("authpriv", "ftp", "ntp", "audit", "alert", "clock"),
    *(f"local{number}" for number in range(8)),
)
KERNEL_FACILITY = 0


class Forger(str, Enum):
    """Who could have written it, the weakest first: whatever holds of one holds of those after it.
    Stored and printed as its value."""

    ANYONE = "anyone"  # anyone on the network
    USER = "user"  # any user of the machine that it is about
    ROOT = "root"  # root of that machine alone, or its firmware
    NOBODY = "nobody"  # nobody but the site's own managers: Slurm's controller, ourselves, a person

    def __str__(self) -> str:
        return str(self.value)

    @property
    def rank(self) -> int:
        """0 for anyone, rising with what it takes."""
        return _FORGERS.index(self)

    @property
    def is_believed(self) -> bool:
        """Whether no user of the machine can have written it."""
        return self in (Forger.ROOT, Forger.NOBODY)


_FORGERS = tuple(Forger)
BELIEVED = tuple(forger.value for forger in Forger if forger.is_believed)
"""As they are stored."""


class Transport(str, Enum):
    """By which way it came. Stored and printed as its value."""

    UNKNOWN = "unknown"
    UDP = "udp"
    TCP = "tcp"
    RELP = "relp"
    TLS = "tls"
    SNMP_TRAP = "snmp_trap"
    NODE_CHECK = "node_check"
    SSH = "ssh"
    SNMP = "snmp"
    HTTP = "http"
    BMC = "bmc"
    SLURM = "slurm"
    CONCLUDED = "concluded"
    PERSON = "person"

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Provenance:
    """Where an event comes from.

    `sender` is an address, a machine's name or a person's. `authenticated_as` is what proved it,
    such as a token or a certificate, empty where nothing did. `is_relay`: the sender speaks for
    other machines. `program`, `facility` (0 to 23) and `severity` (0 to 7) are those of a log line.
    """

    sender: str = ""
    transport: Transport = Transport.UNKNOWN
    authenticated_as: str = ""
    is_relay: bool = False
    program: str = ""
    facility: Optional[int] = None
    severity: Optional[int] = None
    forger: Forger = Forger.ANYONE


# Of events that say nothing of it, such as those of an earlier version: believed least.
UNKNOWN = Provenance()


def of_line(
    sender: Provenance,
    *,
    program: str = "",
    facility: Optional[int] = None,
    severity: Optional[int] = None,
    is_of_driver: bool = False,
) -> Provenance:
    """Of a log line that came by this sender. Text is at best what any user of the machine may
    write, but for a kernel's line that begins with its driver's own words (`is_of_driver`)."""
    is_of_kernel = program == "kernel" and is_of_driver
    most = Forger.ROOT if is_of_kernel else Forger.USER
    forger = min(sender.forger, most, key=_rank)
    return replace(
        sender, program=program[:80], facility=facility, severity=severity, forger=forger
    )


def _rank(forger: Forger) -> int:
    return forger.rank


def to_wire(provenance: Provenance) -> dict[str, Any]:
    """JSON-ready; what is not known is left out."""
    words = {"transport": str(provenance.transport), "forger": str(provenance.forger)}
    values = vars(provenance) | words
    # 0 is the kernel's facility.
    return {name: value for name, value in values.items() if value or _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def from_wire(wire: Optional[Mapping[str, Any]]) -> Provenance:
    """Inverse of `to_wire`; UNKNOWN for nothing. Raises ValueError or TypeError for what is no
    provenance."""
    if not wire:
        return UNKNOWN
    values = dict(wire)
    values["transport"] = Transport(values.get("transport", Transport.UNKNOWN))
    values["forger"] = Forger(values.get("forger", Forger.ANYONE))
    return Provenance(**values)


_COULD = {
    Forger.ANYONE: "anyone on the network could have written it",
    Forger.USER: "any user of the machine could have written it",
    Forger.ROOT: "only root of the machine could have written it",
    Forger.NOBODY: "nobody but the site's managers could have written it",
}
_BY = {
    Transport.UDP: "syslog over UDP",
    Transport.TCP: "syslog over TCP",
    Transport.RELP: "syslog over RELP",
    Transport.TLS: "syslog over TLS",
    Transport.SNMP_TRAP: "an SNMP notification",
    Transport.NODE_CHECK: "the node's own check",
    Transport.SSH: "a look over SSH",
    Transport.SNMP: "a look over SNMP",
    Transport.HTTP: "a look over HTTP",
    Transport.BMC: "its BMC",
    Transport.SLURM: "Slurm",
    Transport.CONCLUDED: "Kintsugi's own conclusion",
    Transport.PERSON: "a person",
}


def describe(provenance: Provenance) -> str:
    """For people, such as `syslog over UDP from 10.0.0.9, a relay, sshd (authpriv): anyone on the
    network could have written it`."""
    told = [_BY.get(provenance.transport, "a way that is not known")]
    if provenance.sender:
        told[0] += f" from {provenance.sender}"
    if provenance.is_relay:
        told.append("a relay")
    if provenance.authenticated_as:
        told.append(f"proved by {provenance.authenticated_as}")
    if provenance.program or provenance.facility is not None:
        told.append(_get_program(provenance))
    return f"{', '.join(told)}: {_COULD[provenance.forger]}"


def _get_program(provenance: Provenance) -> str:
    program, facility = provenance.program or "no program named", provenance.facility
    is_known = facility is not None and 0 <= facility < len(FACILITIES)
    return f"{program} ({FACILITIES[facility]})" if is_known and facility is not None else program
