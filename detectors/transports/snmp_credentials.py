"""With which credentials, and within which limits, a target is asked over SNMP. No secret is ever
printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from detectors.detector import Target
from detectors.faults import Word

# RFC 3414, 11.2: a password has at least eight characters.
_SHORTEST_KEY = 8


class SnmpVersion(Word):
    V2C = "2c"
    V3 = "3"


class AuthProtocol(Word):
    """HMAC of RFC 3414 (sha) and RFC 7860 (SHA-2). MD5 is not offered."""

    NONE = "none"
    SHA = "sha"
    SHA224 = "sha224"
    SHA256 = "sha256"
    SHA384 = "sha384"
    SHA512 = "sha512"


class PrivProtocol(Word):
    """RFC 3826; longer keys by Blumenthal's draft, as net-snmp does. DES is not offered."""

    NONE = "none"
    AES128 = "aes128"
    AES192 = "aes192"
    AES256 = "aes256"


@dataclass(frozen=True)
class SnmpCredentials:
    """How one target is asked. Raises ValueError, without the secrets, for a set that cannot
    work."""

    version: SnmpVersion = SnmpVersion.V2C
    community: str = field(default="", repr=False)
    user: str = ""
    auth_protocol: AuthProtocol = AuthProtocol.NONE
    auth_key: str = field(default="", repr=False)
    priv_protocol: PrivProtocol = PrivProtocol.NONE
    priv_key: str = field(default="", repr=False)
    port: int = 161
    context: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.port < 65536:
            raise ValueError(f"SNMP port {self.port} is none of 1 to 65535")
        if self.version is SnmpVersion.V2C:
            if not self.community:
                raise ValueError("SNMP v2c needs a community")
            return
        if not self.user:
            raise ValueError("SNMP v3 needs a user")
        for what, protocol, key in (
            ("authentication", self.auth_protocol, self.auth_key),
            ("privacy", self.priv_protocol, self.priv_key),
        ):
            if protocol != "none" and len(key) < _SHORTEST_KEY:
                raise ValueError(
                    f"the {what} key of SNMP user {self.user} has fewer than {_SHORTEST_KEY}"
                    " characters"
                )
        if self.priv_protocol is not PrivProtocol.NONE and self.auth_protocol is AuthProtocol.NONE:
            raise ValueError(
                f"SNMP user {self.user} has privacy without authentication, which SNMP does not"
                " allow"
            )

    @property
    def called(self) -> str:
        """For messages: the version, and the user of v3."""
        return "SNMP v2c" if self.version is SnmpVersion.V2C else f"SNMP v3 as user {self.user}"


@dataclass(frozen=True)
class SnmpLimits:
    """Seconds, tries after the first, and sizes.

    net-snmp gives at most 100 objects in one answer (maxGetbulkResponses of snmpd.conf), which fit
    two packets.
    """

    timeout_s: float = 2.0
    retries: int = 2
    objects: int = 60_000
    walk_s: float = 25.0
    objects_per_answer: int = 100


Credentials = Callable[[Target], SnmpCredentials]


def describe_address(target: Target, credentials: SnmpCredentials) -> str:
    """Who was asked, where and how: the head of every message."""
    return f"{target.name} ({target.address}:{credentials.port}, {credentials.called})"


def describe_access_check(credentials: SnmpCredentials) -> str:
    """What else to check when no answer comes."""
    if credentials.version is SnmpVersion.V2C:
        return "the community (a wrong one is not answered), and that the agent allows this machine"
    return (
        "the privacy key and protocol (a wrong one is not answered by every agent), and that it"
        " allows this machine"
    )
