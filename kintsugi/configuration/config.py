"""Every setting in one table: where it comes from, what it must look like, what it is when unset.

A value comes from the environment (`NAME`), from a file (`NAME_FILE`, for secrets) or from the
site's settings file (`kintsugi.configuration.settings_file`). A wrong or unknown one stops the
start, naming file, key, value and what was expected. Secrets never appear in the message.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from detectors.time_zones import get_zone
from kintsugi.configuration import settings_file
from kintsugi.configuration.setting_values import (
    BadValue,
    build_choice_parser,
    build_choices_parser,
    build_url_parser,
    count,
    listen_address,
    parse_absolute_pattern,
    parse_database_url,
    parse_detector_names,
    parse_duration,
    parse_expected_stages,
    parse_flag,
    parse_kept_time,
    parse_networks,
    parse_percent,
    parse_percent_from_one,
    parse_plain_networks,
    parse_positive_duration,
    parse_relays,
    parse_slurm_access,
    parse_time_zones,
    parse_words,
)

_PREFIX = "KINTSUGI_"


@dataclass(frozen=True)
class Key:
    """One setting: its name, how its text becomes a value, its default (as text), what to write,
    what for."""

    name: str
    parse: Callable[[str], Any]
    default: str
    expected: str
    meaning: str
    is_secret: bool = False


_DB_URL = (
    "postgresql://USER:PASSWORD@HOST:PORT/NAME[?OPTION=VALUE], with libpq's options, or unset for"
    " SQLite"
)
_DURATION = "a number and s, m, h or d, such as 90s or 24h"
_COUNT = "a whole number from 1"
_SHARE = "a share such as 5%"

KEYS: tuple[Key, ...] = (
    Key("KINTSUGI_DATA_DIR", Path, "var", "a directory", "spool, embedded database, stop file"),
    Key(
        "KINTSUGI_SECRET_KEY",
        str,
        "",
        "50 random characters",
        "signs sessions; made and kept in the data directory when unset",
        True,
    ),
    Key(
        "KINTSUGI_ALLOWED_HOSTS",
        parse_words,
        "localhost,127.0.0.1",
        "host names, comma-separated",
        "names under which the console is reached",
    ),
    Key(
        "KINTSUGI_BASE_URL",
        build_url_parser("http", "https"),
        "http://127.0.0.1:8000",
        "http://HOST[:PORT]",
        "the console's address in messages",
    ),
    Key(
        "KINTSUGI_WEB_LISTEN",
        listen_address,
        "127.0.0.1:8000",
        "ADDRESS:PORT",
        "where `kintsugi up` serves the console",
    ),
    Key(
        "KINTSUGI_METRICS_NETWORKS",
        parse_plain_networks,
        "127.0.0.0/8,::1/128",
        "CIDR networks, comma-separated",
        "who may read /metrics of the console",
    ),
    Key(
        "KINTSUGI_PING_URL",
        build_url_parser("https"),
        "",
        "https://HOST/PATH",
        "asked once a minute after a sweep has done its work, so that somebody outside notices when"
        " it is not; unset: none",
        True,
    ),
    Key(
        "KINTSUGI_TIME_ZONE",
        lambda text: get_zone(text).key,
        "UTC",
        "an IANA time zone such as Asia/Tokyo",
        "of the pages",
    ),
    Key(
        "KINTSUGI_KEEP",
        parse_kept_time,
        "",
        "a number and d or y, such as 400d or 2y",
        "how long the database keeps what has ended; older history is written to files and removed;"
        " unset: for ever",
    ),
    Key(
        "KINTSUGI_HISTORY_DIR",
        Path,
        "",
        "a directory",
        "where history past KINTSUGI_KEEP is written; unset: history in the data directory",
    ),
    Key("DATABASE_URL", parse_database_url, "", _DB_URL, "the database of record", True),
    Key(
        "REDIS_URL",
        build_url_parser("redis", "rediss", "unix"),
        "",
        "redis://HOST:PORT/N, or unset for the in-process broker",
        "Celery's broker",
        True,
    ),
    Key(
        "KINTSUGI_SYSLOG_LISTEN",
        listen_address,
        "127.0.0.1:5514",
        "ADDRESS:PORT",
        "syslog over UDP and TCP",
    ),
    Key(
        "KINTSUGI_RELP_LISTEN",
        listen_address,
        "",
        "ADDRESS:PORT",
        "syslog over RELP, which acknowledges each line; unset: none is received",
    ),
    Key(
        "KINTSUGI_TLS_LISTEN",
        listen_address,
        "",
        "ADDRESS:PORT",
        "syslog over TLS, from senders with a certificate of their own; unset: none is received",
    ),
    Key(
        "KINTSUGI_TLS_CERTIFICATE",
        str,
        "",
        "a path to a PEM file",
        "the receiver's certificate with its chain",
    ),
    Key("KINTSUGI_TLS_KEY", str, "", "a path to a PEM file", "the key of that certificate"),
    Key(
        "KINTSUGI_TLS_AUTHORITIES",
        str,
        "",
        "a path to a PEM file",
        "who signs the certificates of senders",
    ),
    Key(
        "KINTSUGI_TLS_REFUSED",
        str,
        "",
        "a path to a text file",
        "certificates of senders that are trusted no longer: a SHA-256 fingerprint a line, read"
        " anew when the file changes",
    ),
    Key(
        "KINTSUGI_SYSLOG_UDP",
        build_choice_parser("all", "switches"),
        "all",
        "all or switches",
        "who of the accepted senders may send over UDP: switches are those of the inventory, by"
        " their addresses",
    ),
    Key(
        "KINTSUGI_SYSLOG_NETWORKS",
        parse_networks,
        "",
        "CIDR networks, comma-separated, and the word inventory",
        "accepted senders; inventory stands for loopback and all addresses in the inventory, and is"
        " the default",
    ),
    Key(
        "KINTSUGI_SYSLOG_RELAYS",
        parse_relays,
        "",
        "CIDR networks, comma-separated, or none",
        "senders that speak for other machines, such as a log host; any other speaks for itself."
        " Unset: whoever is accepted and no machine of the inventory",
    ),
    Key(
        "KINTSUGI_SYSLOG_TIME_ZONES",
        parse_time_zones,
        "*=UTC",
        "HOST=ZONE pairs, * for the rest",
        "zone of time stamps that name none",
    ),
    Key(
        "KINTSUGI_TRAP_LISTEN",
        listen_address,
        "",
        "ADDRESS:PORT",
        "SNMP traps and informs over UDP; unset: none are received",
    ),
    Key(
        "SLACK_BOT_TOKEN",
        str,
        "",
        "a bot token, xoxb-...",
        "posts incidents to Slack; unset: messages go to the log",
        True,
    ),
    Key("SLACK_CHANNEL", str, "", "a channel id, C...", "where incidents are posted"),
    Key(
        "SLACK_SECOND_CHANNEL",
        str,
        "",
        "a channel id, C...",
        "where that goes too which nobody has taken when it is asked again; unset: nowhere",
    ),
    Key(
        "KINTSUGI_ALERTMANAGER_URL",
        build_url_parser("http", "https"),
        "",
        "http://HOST:PORT, to which /api/v2/alerts is added",
        "Alertmanager, which pages people about a critical fault that nobody has taken half an hour"
        " after it was asked in Slack; unset: nobody is paged",
    ),
    Key(
        "SLACK_SIGNING_SECRET",
        str,
        "",
        "the app's signing secret",
        "takes orders from Slack; unset: its two addresses do not exist",
        True,
    ),
    Key(
        "KINTSUGI_SLACK_USERS",
        Path,
        "",
        'a path to a TOML file with lines U0ABC = "name"',
        "who is who in Slack",
    ),
    Key(
        "SLACK_API_URL",
        build_url_parser("http", "https"),
        "https://slack.com/api/",
        "http(s)://HOST/api/",
        "Slack's Web API",
    ),
    Key(
        "KINTSUGI_SLURM",
        parse_slurm_access,
        "off",
        "off, local, or ssh:[USER@]HOST[:PORT]",
        "how scontrol, sinfo and squeue are reached",
    ),
    Key(
        "KINTSUGI_NODE_COMMENT",
        parse_flag,
        "yes",
        "yes or no",
        "whether a node's Comment in Slurm names the incident while Kintsugi holds the node",
    ),
    Key(
        "KINTSUGI_JOB_POLICY",
        Path,
        "",
        "a path to a TOML file with [[partition]] tables",
        "what may be done about jobs on a node that is seen broken; unset: they are waited for",
    ),
    Key(
        "KINTSUGI_SHADOW_WINDOW",
        parse_positive_duration,
        "24h",
        _DURATION,
        "how long after a run in shadow mode its node and the guards are asked again",
    ),
    Key(
        "KINTSUGI_ACTS",
        parse_flag,
        "yes",
        "yes or no",
        "whether this process may act on nodes; with no it only looks, and needs no key for acts",
    ),
    Key("KINTSUGI_SLURM_CONF", str, "", "a path", "SLURM_CONF for local Slurm commands"),
    Key(
        "KINTSUGI_CLUSTER_NAME",
        str,
        "",
        "Slurm's ClusterName",
        "nothing is done to a Slurm that gives another name",
    ),
    Key("KINTSUGI_SSH_USER", str, "kintsugi", "a user name", "on the nodes"),
    Key(
        "KINTSUGI_SSH_KEY",
        str,
        "",
        "a path to a private key",
        "for the nodes; unset: no node access",
    ),
    Key(
        "KINTSUGI_SSH_KNOWN_HOSTS",
        str,
        "",
        "a path",
        "host keys of the nodes; unknown keys are refused",
    ),
    Key(
        "KINTSUGI_VERIFY_COMMAND",
        str,
        "",
        "a command with its arguments",
        "run on a node before it is resumed; unset: a person resumes",
    ),
    Key("KINTSUGI_VERIFY_TIMEOUT", parse_duration, "20m", _DURATION, "limit of the verify command"),
    Key(
        "KINTSUGI_REQUEUE_DEAD_JOBS",
        parse_flag,
        "no",
        "yes or no",
        "requeue a job whose GPU is lost instead of waiting for its end",
    ),
    Key(
        "KINTSUGI_STOP_FILE",
        str,
        "",
        "a path; unset: `stop` in the data directory",
        "while it exists nothing disruptive is done",
    ),
    Key(
        "KINTSUGI_QUIET_PERIOD",
        parse_duration,
        "30m",
        _DURATION,
        "without the fault after a repair before its incident resolves",
    ),
    Key(
        "KINTSUGI_JOIN_WINDOW",
        parse_duration,
        "10m",
        _DURATION,
        "faults of one node or GPU this close in time are one incident",
    ),
    Key(
        "KINTSUGI_CORRELATION",
        Path,
        "",
        "a folder with *.toml files",
        "rules of correlation of this site, tried before the shipped ones",
    ),
    Key(
        "KINTSUGI_CATALOG_DIR",
        Path,
        "",
        "a folder for *.toml files",
        "fault types, signatures, harmless lines and drains of other checks of this site, tried"
        " before the shipped ones; read again when they change",
    ),
    Key(
        "KINTSUGI_RUNBOOKS",
        Path,
        "",
        "a folder with *.yaml files",
        "runbooks of this site, beside the shipped ones or in their place",
    ),
    Key("KINTSUGI_CAP_NODES", count, "5", _COUNT, "at most so many nodes of a partition are out"),
    Key(
        "KINTSUGI_CAP_SHARE",
        parse_percent,
        "5%",
        _SHARE,
        "and at most this share of it, but one node always",
    ),
    Key(
        "KINTSUGI_POD_FLOOR",
        parse_percent,
        "90%",
        _SHARE,
        "of the nodes of a pod stay in service; one may always go",
    ),
    Key(
        "KINTSUGI_RATE_PER_HOUR",
        count,
        "10",
        _COUNT,
        "nodes taken out within an hour for one fault type",
    ),
    Key(
        "KINTSUGI_BREAKER_SHARE",
        parse_percent,
        "10%",
        _SHARE,
        "of the nodes turned bad at once trips the breaker",
    ),
    Key(
        "KINTSUGI_BREAKER_WINDOW",
        parse_positive_duration,
        "10m",
        _DURATION,
        "what counts as at once for the breaker",
    ),
    Key(
        "KINTSUGI_APPROVAL_ABOVE",
        count,
        "5",
        _COUNT,
        "more nodes in repair at once need a person's leave for each",
    ),
    Key(
        "KINTSUGI_APPROVAL_TIME",
        parse_positive_duration,
        "1h",
        _DURATION,
        "how long a person's leave for a step holds, and a request to a second person",
    ),
    Key(
        "KINTSUGI_SECOND_PERSON",
        build_choices_parser("arming", "widening", "cold_cycle"),
        "",
        "some of arming, widening, cold_cycle, comma-separated",
        "what one person asks for and another confirms"
        " ([guards](../guards.md#a-second-person)); unset: none",
    ),
    Key(
        "KINTSUGI_ARMING_BOUND",
        parse_percent_from_one,
        "20%",
        "a share from 1%, such as 5%",
        "the exact 95 % limit of wrong drains up to which the next scope of arming is proposed"
        " ([guards](../guards.md#what-may-be-armed-next))",
    ),
    Key("KINTSUGI_BOOT_TIME", parse_duration, "20m", _DURATION, "the longest a node takes to boot"),
    Key(
        "KINTSUGI_VENDOR_EXPECTED",
        parse_expected_stages,
        "opened=2d,approved=3d,shipped=14d,received=2d,installed=1d,verified=30d",
        "STATE=TIME pairs, comma-separated",
        "how long a vendor case may stand in a state before people are reminded once a day",
    ),
    Key(
        "KINTSUGI_FIELD_DIAGNOSTICS",
        parse_absolute_pattern,
        "",
        "an absolute path whose last part may hold * and ?",
        "files on a node that go into the evidence for the vendor",
    ),
    Key(
        "KINTSUGI_CREDENTIALS",
        Path,
        "",
        "a path to a TOML file with [[group]] tables",
        "how groups of targets are entered over SSH, SNMP and HTTP",
    ),
    Key(
        "KINTSUGI_DETECTORS",
        parse_detector_names,
        "",
        "names of detectors, comma-separated",
        "unset: all of them",
    ),
    Key(
        "KINTSUGI_PROMETHEUS_URL",
        build_url_parser("http", "https"),
        "",
        "http(s)://HOST[:PORT]",
        "a query API; unset: none",
    ),
    Key(
        "KINTSUGI_FAST_SNMP",
        parse_flag,
        "no",
        "yes or no",
        "the fast decoder of SNMP, where it is installed",
    ),
    Key(
        "KINTSUGI_POLL_EVERY",
        parse_positive_duration,
        "30s",
        _DURATION,
        "no detector looks at a target more often; most look every minute by themselves",
    ),
    Key(
        "KINTSUGI_SWEEP_EVERY",
        parse_duration,
        "5s",
        _DURATION,
        "between two looks for work whose task was lost",
    ),
    Key(
        "KINTSUGI_IS_DEMO",
        parse_flag,
        "no",
        "yes or no",
        "marks the pages of the simulated cluster",
    ),
    Key(
        "KINTSUGI_SIMULATOR",
        parse_flag,
        "no",
        "yes or no",
        "the simulator's commands, which a demonstration has by itself; not for sites",
    ),
)


_KNOWN = (
    {key.name for key in KEYS} | {f"{key.name}_FILE" for key in KEYS} | {settings_file.VARIABLE}
)


def _read_text(key: Key, environ: Mapping[str, str]) -> str:
    path = environ.get(f"{key.name}_FILE", "")
    if path and key.name in environ:
        raise ImproperlyConfigured(
            f"{key.name} and {key.name}_FILE are both set; keep one of them."
        )
    if not path:
        return environ.get(key.name, "")
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise ImproperlyConfigured(
            f"{key.name}_FILE={path}: cannot be read ({error.strerror})."
        ) from error
    except UnicodeDecodeError as error:
        raise ImproperlyConfigured(f"{key.name}_FILE={path}: expected UTF-8.") from error


def load(
    environ: Mapping[str, str], origins: Mapping[str, Path] = MappingProxyType({})
) -> dict[str, Any]:
    """Every key's value. Raises ImproperlyConfigured naming each wrong or unknown key, all in one
    go.

    `origins`: the file that a setting came from, by name; what is not in it came from the
    environment.
    """
    problems = [
        _describe_unknown(name, origins) for name in sorted(environ) if _is_unknown(name, origins)
    ]
    values: dict[str, Any] = {}
    for key in KEYS:
        text = _read_text(key, environ)
        try:
            values[key.name] = key.parse(text or key.default) if text or key.default else None
        except (ValueError, KeyError, OSError) as error:
            shown = "(hidden)" if key.is_secret else text
            reason = f" {error}." if isinstance(error, BadValue) else ""
            place = _format_origin(key.name, origins)
            problems.append(f"{place}{key.name}={shown}: expected {key.expected}.{reason}")
    if problems:
        raise ImproperlyConfigured("\n".join(problems))
    return values


def _is_unknown(name: str, origins: Mapping[str, Path]) -> bool:
    return name not in _KNOWN and (name.startswith(_PREFIX) or name in origins)


def _describe_unknown(name: str, origins: Mapping[str, Path]) -> str:
    problem = f"{_format_origin(name, origins)}{name}: no such setting.{_suggest_similar(name)}"
    return f"{problem} `kintsugi settings` lists those that exist."


def _format_origin(name: str, origins: Mapping[str, Path]) -> str:
    path = origins.get(name) or origins.get(f"{name}_FILE")
    return f"{path}: " if path is not None else ""


def _suggest_similar(name: str) -> str:
    matches = difflib.get_close_matches(name, sorted(_KNOWN), n=1)
    return f" Is it {matches[0]}?" if matches else ""


def get_assignments(environ: Mapping[str, str]) -> dict[str, str | None]:
    """By key what `load` accepts in its place: the text as it was given, or the default; None for
    what is unset.

    A secret from a file is given as `NAME_FILE`; one that stands in the environment itself is not
    shown: "".
    """
    found: dict[str, str | None] = {}
    for key in KEYS:
        path = environ.get(f"{key.name}_FILE", "")
        text = environ.get(key.name, "")
        if path:
            found[f"{key.name}_FILE"] = path
        elif key.is_secret and text:
            found[key.name] = ""
        else:
            found[key.name] = text or key.default or None
    return found
