"""How a node's management controller is entered: what a [group.bmc] table of KINTSUGI_CREDENTIALS
holds. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

# Each verb of `runbooks.power.protocol.Power` has ended by then, whatever the controller does: a
# worker never waits.
LIMIT = timedelta(seconds=30)


class BmcKind(StrEnum):
    """What the controller speaks."""

    REDFISH = "redfish"
    IPMI = "ipmi"


@dataclass(frozen=True)
class BmcAccess:
    """`system` names one of several systems behind one service, by Id, UUID or Name; `{name}` in it
    is the node's name.

    `verify` off: the certificate is not looked at, or the address is plain http. `ca_file` is a
    path, empty for the system's own certificates. `cipher` is IPMI's suite. The password is never
    printed.
    """

    kind: BmcKind
    user: str
    password: str = field(repr=False)
    ca_file: str = ""
    verify: bool = True
    system: str = ""
    cipher: int = 17
