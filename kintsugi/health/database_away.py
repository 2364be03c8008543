"""What this process knows of a database that does not answer, and what people are told of it."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import Error, InterfaceError, OperationalError, connection

from detectors.transports import error_text
from incidents.text.wording import format_duration, format_moment
from kintsugi import clock
from kintsugi.configuration import schema, stop_file
from kintsugi.health.outages import Outage

# Our choice: a restart of PostgreSQL takes some seconds, a failover half a minute.
RETRY_AFTER_S = 30
# What libpq adds to `Connection refused` (connectFailureMessage in its fe-connect.c).
_LIBPQ_ASKS = " Is the server running "
ERRORS = (OperationalError, InterfaceError)
"""What Django raises where the database is at fault and not the question."""
OUTAGE = Outage(
    schema.store_name,
    "What this process does with it rests until it does.",
)


@dataclass(frozen=True)
class Absence:
    """A database that is away: which, why and since when in one sentence, what goes on without it,
    what rests until it is back, and what a person can do."""

    summary: str
    goes_on: str
    rests: str
    todo: str
    stop: str


def find_absence(error: Exception) -> Absence | None:
    """None where the database answers now: then it refused this one question."""
    reason = describe_reason(error)
    if _does_answer():
        OUTAGE.end()
        return None
    since = OUTAGE.begin(reason)
    length = format_duration(clock.now() - since)
    summary = (
        f"Kintsugi's {_name()} has not answered since {format_moment(since)}, for {length}, as this"
        f" process sees it: {reason}."
    )
    return Absence(summary, _GOES_ON, _RESTS, describe_todo(), stop_file.describe_stop())


def describe_reason(error: Exception) -> str:
    """In the words of the database or its driver, without a full stop or libpq's question."""
    return error_text.format_reason(error).partition(_LIBPQ_ASKS)[0].rstrip(".")


_GOES_ON = (
    "Receivers keep syslog and traps on their disks and deliver them when it is back. Nodes that"
    " are drained stay drained, and jobs run on: Slurm does not depend on Kintsugi."
)
_RESTS = (
    "No node is polled, no incident made, no message sent, and no repair begins a step; a command"
    " that Slurm or a node was given before may still take effect. All of it goes on by itself when"
    " the database is back. Nobody is told of faults until then: see `sinfo -R`."
)


def _name() -> str:
    name = schema.store_name()
    return name if connection.vendor == "postgresql" else f"database {name}"


def describe_todo() -> str:
    """What a person can look at."""
    if connection.vendor != "postgresql":
        path = connection.settings_dict["NAME"]
        return f"See that {path} can be written and its file system has room (`df -h`)."
    values = connection.settings_dict
    where = values["HOST"] or "its own machine"
    ready = " ".join(
        ["pg_isready", *_format_option("-h", values["HOST"]), *_format_option("-p", values["PORT"])]
    )
    return (
        f"See whether it takes connections: `{ready}` from here; then `systemctl status postgresql`"
        f" and its log on {where}, and the room on its disk. If it has moved, correct DATABASE_URL."
    )


def _format_option(name: str, value: object) -> list[str]:
    return [name, str(value)] if value else []


def _does_answer() -> bool:
    """Asked anew where the question had a connection: an attempt to connect takes up to
    `connect_timeout`, and one that failed just now would fail again."""
    had_connection = connection.connection is not None
    connection.close()
    if not had_connection:
        return False
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:
        connection.close()
        return False
    return True
