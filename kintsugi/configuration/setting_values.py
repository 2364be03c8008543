"""How the text of a setting becomes its value. Each raises ValueError for text that it does not
take."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

from detectors.time_zones import get_zone
from incidents.vocabulary.vendor_states import CaseState

_LEAST_SHARE = 0.01
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
INVENTORY = "inventory"  # in a list of networks
# A century: with longer ones the moments before now that are asked for could lie before the first
# that Python and the databases know.
_LONGEST = timedelta(days=36_500)
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def parse_duration(text: str) -> timedelta:
    """`90s`, `15m`, `24h` or `7d`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None:
        raise ValueError(text)
    try:
        duration = timedelta(**{_UNITS[found[2]]: float(found[1])})
    except OverflowError as error:
        raise ValueError(text) from error
    if duration > _LONGEST:
        raise BadValue(f"it is longer than {_LONGEST.days}d")
    return duration


SHORTEST_KEPT = timedelta(days=90)  # what the home page's numbers are of


def parse_kept_time(text: str) -> timedelta:
    """`2y` or `90d`: 90 days at least. A year has 365 days."""
    years = re.fullmatch(r"(\d+)y", text)
    found = parse_duration(text) if years is None else parse_duration(f"{365 * int(years[1])}d")
    if found < SHORTEST_KEPT:
        raise BadValue("it is 90d at least: the home page tells of 90 days")
    return found


def parse_positive_duration(text: str) -> timedelta:
    found = parse_duration(text)
    if found < timedelta(seconds=1):
        raise ValueError(text)
    return found


def parse_expected_stages(text: str) -> dict[str, timedelta]:
    """`opened=2d,shipped=14d`: how long a vendor case may stand in a state; those left out are not
    watched."""
    named = (part.partition("=") for part in parse_words(text))
    return {
        CaseState(name.strip()).value: parse_positive_duration(length.strip())
        for name, _, length in named
    }


def count(text: str) -> int:
    """One or more."""
    if not re.fullmatch(r"[1-9][0-9]{0,6}", text):
        raise ValueError(text)
    return int(text)


def parse_percent(text: str) -> float:
    """`5%` as 0.05."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    if found is None or float(found[1]) > 100:
        raise ValueError(text)
    return float(found[1]) / 100


def parse_percent_from_one(text: str) -> float:
    """As `parse_percent`, and 1% at least: no record shows a share of zero."""
    share = parse_percent(text)
    if share < _LEAST_SHARE:
        raise ValueError(text)
    return share


def parse_detector_names(text: str) -> list[str]:
    """Raises KeyError for a detector that does not exist."""
    from detectors import registry  # noqa: PLC0415  (all detectors: only a list of them needs it)

    return [registry.get_by_name(name).name for name in parse_words(text)]


def parse_absolute_pattern(text: str) -> str:
    """`/var/log/fieldiag/*.log`: one folder, and a pattern in it."""
    if not re.fullmatch(r"/(?:[\w.+-]+/)*[\w.+*?-]+", text) or "/../" in text:
        raise ValueError(text)
    return text


def parse_flag(text: str) -> bool:
    return {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}[
        text.lower()
    ]


def listen_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not 0 <= int(port) <= 65535:
        raise ValueError(text)
    return host.strip("[]"), int(port)


def parse_networks(text: str) -> list[str]:
    """CIDR networks; the word `inventory` stands for loopback and the inventory's addresses."""
    return [
        part if part == INVENTORY else str(ipaddress.ip_network(part, strict=False))
        for part in parse_words(text)
    ]


def parse_plain_networks(text: str) -> list[str]:
    """CIDR networks alone."""
    return [str(ipaddress.ip_network(part, strict=False)) for part in parse_words(text)]


def parse_relays(text: str) -> list[str]:
    """CIDR networks; `none` for no relay."""
    return [] if text == "none" else parse_plain_networks(text)


def parse_words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_time_zones(text: str) -> dict[str, str]:
    """`leaf-01=Asia/Tokyo, *=UTC`: the zone of year-less and zone-less time stamps, by source."""
    zones = {}
    for part in parse_words(text):
        source, _, zone = part.partition("=")
        zones[source] = get_zone(zone).key
    return zones


def build_url_parser(*schemes: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if urlsplit(text).scheme not in schemes:
            raise ValueError(text)
        return text

    return check


class BadValue(ValueError):
    """A value that cannot be taken; the words are shown after what was expected, and hold no part
    of a secret."""


def parse_database_url(text: str) -> dict[str, str]:
    """libpq's own parameters: several hosts, `sslmode`, `target_session_attrs`, time-outs and all
    others it knows.

    https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING
    """
    parts = urlsplit(text)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ValueError(text)
    import psycopg  # noqa: PLC0415  (libpq: only a site on PostgreSQL has it loaded)
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415  (as above)

    for name in parse_qs(parts.query, keep_blank_values=True):
        try:
            conninfo_to_dict(f"postgresql:///?{name}=1")
        except psycopg.ProgrammingError as error:
            raise BadValue(f"libpq has no option {name!r}") from error
    try:
        parameters = conninfo_to_dict(text)
    except psycopg.ProgrammingError as error:
        raise ValueError(text) from error
    mode = parameters.get("sslmode")
    if mode is not None and mode not in _SSL_MODES:
        raise BadValue(f"sslmode is one of {', '.join(_SSL_MODES)}, not {mode!r}")
    if not parameters.get("dbname") and "service" not in parameters:
        raise BadValue("it names no database")
    return {name: str(value) for name, value in parameters.items() if value is not None}


def build_choice_parser(*choices: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return check


def build_choices_parser(*choices: str) -> Callable[[str], frozenset[str]]:
    """Comma-separated; each at most once counts."""

    def check(text: str) -> frozenset[str]:
        return frozenset(build_choice_parser(*choices)(word) for word in parse_words(text))

    return check


def parse_slurm_access(text: str) -> str:
    if text not in ("off", "local") and not re.fullmatch(r"ssh:([\w.-]+@)?[\w.-]+(:\d+)?", text):
        raise ValueError(text)
    return text
