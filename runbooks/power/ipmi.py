"""Power by IPMI 2.0 over the network: the program ipmitool on this machine. The password travels in
its environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta

from detectors.detector import DetectorError, Output, Shell, Target
from detectors.transports.local import LocalShell
from runbooks.power.access import BmcAccess
from runbooks.power.protocol import PowerError, PowerRefusal, PowerState, get_controller

_PORT = 623
_HOST = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9_][A-Za-z0-9._-]*))(?::(?P<port>\d{1,5}))?"
)
_STATES = {"Chassis Power is on": PowerState.ON, "Chassis Power is off": PowerState.OFF}
# Of ipmitool 1.8.19 (src/plugins/lanplus): a message that is not answered is sent again R times, N
# seconds later each. With these a controller that is away was given up after 10 s.
_RETRY = ("-N", "2", "-R", "2")
_LIMIT = timedelta(seconds=25)
# Chassis Control asks for Operator (IPMI 2.0, appendix G): no more is taken, whatever the user has.
# Without -v a wrong password and a controller that is away are told in the same words.
_WAY = ("-v", "-I", "lanplus", "-L", "OPERATOR", *_RETRY)
# Told with -v of each session, also of one that goes well.
_USUAL = re.compile(
    r"Loading IANA PEN|Running Get|Get HPM\.x|Invalid completion code received|Discovered"
    r" IPMB|Acquire IPMB|^\s*$"
)
# What ipmitool says, and what it means; the first that fits. It ends with 1 for all of them.
_REFUSED = tuple((re.compile(words, re.IGNORECASE), meaning) for words, meaning in (
    (r"RAKP 2 HMAC is invalid|unauthorized name|RAKP 4",
     "does not let {user} in: correct user and password"),
    (r"insufficient privilege|invalid role|privilege level",
     "does not allow it to {user}: make it Operator there"),
    ((r"invalid (?:authentication|integrity|confidentiality) algorithm|no matching cipher"
      r"|cipher suite|build_v2x_msg"),
     "does not take cipher suite {cipher}: give another `cipher`, such as 3"),
    (r"Invalid command|Command not supported|Invalid data field",
     "does not take it: switch its power by hand"),
))  # fmt: skip
_NOT_NOW = "not supported in present state"


class IpmiPower:
    """runbooks.power.protocol.Power by one group's access. `shell_of` makes the shell that runs
    ipmitool with an environment."""

    def __init__(
        self,
        access: BmcAccess,
        *,
        shell_of: Callable[[Mapping[str, str]], Shell] = lambda environment: LocalShell(
            environment=environment
        ),
    ) -> None:
        self._access = access
        self._shell = shell_of({"IPMI_PASSWORD": access.password})

    def read_state(self, node: Target) -> PowerState:
        text = self._ask(node, "status")
        state = next(
            (state for words, state in _STATES.items() if words in text.splitlines()), None
        )
        if state is None:
            raise PowerError(
                f"{_format_controller(node)} does not say whether power is on: ipmitool printed"
                f" {' '.join(text.split())[:200]!r}."
            )
        return state

    def turn_off(self, node: Target) -> None:
        """`chassis power off`: hard, at once."""
        self._ask(node, "off")

    def turn_on(self, node: Target) -> None:
        self._ask(node, "on")

    def _ask(self, node: Target, verb: str) -> str:
        host, port = _parse_address(node)
        where = (
            "-H",
            host,
            "-p",
            str(port),
            "-U",
            self._access.user,
            "-E",
            "-C",
            str(self._access.cipher),
        )
        argv = ("ipmitool", *_WAY, *where, "chassis", "power", verb)
        try:
            output = self._shell.run(node, argv, _LIMIT)
        except DetectorError as error:
            raise PowerRefusal(
                f"ipmitool cannot be run on this machine: install it ({error})."
            ) from error
        words = _format_complaint(output)
        is_so_already = verb != "status" and _NOT_NOW in words
        if output.status != 0 and not is_so_already:
            raise self._build_error(node, verb, words, is_late=output.status is None)
        return output.stdout.decode("utf-8", "replace")

    def _build_error(self, node: Target, verb: str, words: str, *, is_late: bool) -> PowerError:
        who = _format_controller(node)
        if is_late:
            return PowerError(f"{who} has not answered `chassis power {verb}` in time.")
        for pattern, meaning in _REFUSED:
            if pattern.search(words):
                text = meaning.format(user=self._access.user, cipher=self._access.cipher)
                return PowerRefusal(f"{who} {text} ([group.bmc]; ipmitool: {words}).")
        if "Unable to establish" in words or "lookup" in words:
            return PowerError(
                f"{who} cannot be reached: see that it is up, that IPMI over LAN is on there, and"
                f" that the management network is reached from here (ipmitool: {words})."
            )
        return PowerError(
            f"{who} did not take `chassis power {verb}` (ipmitool: {words or 'it said nothing'})."
        )


def _format_complaint(output: Output) -> str:
    """What ipmitool complains of, on one line."""
    lines = (output.stderr + b"\n" + output.stdout).decode("utf-8", "replace").splitlines()
    return " ".join(" ".join(line for line in lines if not _USUAL.search(line)).split())[:300]


def _format_controller(node: Target) -> str:
    return f"{node.name}'s management controller at {get_controller(node)}"


def _parse_address(node: Target) -> tuple[str, int]:
    """Raises PowerRefusal for what is no host; nothing that begins with a dash becomes an
    option."""
    found = _HOST.fullmatch(get_controller(node))
    if found is None:
        raise PowerRefusal(
            f"{_format_controller(node)}: expected an address such as 10.0.9.1 or bmc-gn001:623"
        )
    return found["six"] or found["host"], int(found["port"] or _PORT)
