"""What is said of Kintsugi's faults of its own: who, where, since when, what stops, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from incidents.models import Heartbeat
from incidents.text.wording import format_duration, format_moment

_MIB, _GIB = 1024**2, 1024**3


@dataclass(frozen=True)
class _Work:
    """What stops without a part, the unit that does it (deploy/systemd), and what else stops it."""

    effect: str
    unit: str
    hint: str = ""


_PARTS = {
    "receiver": _Work(
        "its syslog and traps are not read; senders buffer or drop", "kintsugi-receiver"
    ),
    "beat": _Work(
        "nothing is polled, and work whose task was lost is not found again",
        "kintsugi-beat",
        " A Redis that does not answer stops it too: `kintsugi check` says whether it does.",
    ),
    "web": _Work(
        "the console, Slack's buttons and the nodes' own checks get no answer", "kintsugi-web"
    ),
}
_QUEUES = {
    "ingest": _Work("events wait in the inbox", "kintsugi-ingest"),
    "sweep": _Work("what is due is not found", "kintsugi-ingest"),
    "notify": _Work("messages wait", "kintsugi-notify"),
    "runbook": _Work("repairs rest where they are", "kintsugi-runbook"),
    "poll": _Work("nodes and switches are not looked at", "kintsugi-poll"),
    "slurm": _Work(
        "jobs, reservations and what people do to nodes are not followed", "kintsugi-slurm"
    ),
}
_UNKNOWN = _Work("its work is not done", "'kintsugi-*'")


def describe_part(row: Heartbeat) -> str:
    return f"Kintsugi's {row.part} on {row.host} (process {row.pid}, version {row.version})"


def describe_degraded_part(row: Heartbeat) -> str:
    since = f" since {format_moment(row.trouble_since)}" if row.trouble_since is not None else ""
    effects = dict.fromkeys(work.effect for work in _list_works(row))
    return (
        f"{describe_part(row)} runs, and is kept from its work{since}: {row.trouble} Meanwhile"
        f" {'; '.join(effects)}."
    )


def describe_silence(
    row: Heartbeat, now: datetime, *, hosts: Sequence[str], is_embedded: bool
) -> str:
    """`hosts`: others on which the same part is alive."""
    works = _list_works(row)
    begun, last = format_moment(row.began_at), format_moment(row.seen_at)
    length = format_duration(now - row.seen_at)
    silence = f"{describe_part(row)}, running since {begun}, has written nothing since {last}"
    effect = _describe_effect(works, hosts)
    advice = _advise(row.host, works, is_embedded=is_embedded)
    end = "If it is not to run there any more, this ends a day after it was last seen."
    return f"{silence}, for {length}. {effect} {advice} {end}"


def _list_works(row: Heartbeat) -> list[_Work]:
    if row.queues:
        return [_QUEUES.get(queue, _UNKNOWN) for queue in row.queues]
    return [_PARTS.get(row.part, _UNKNOWN)]


def _describe_effect(works: Sequence[_Work], hosts: Sequence[str]) -> str:
    if hosts:
        return f"The same is done on {', '.join(hosts)}: its work goes on there."
    effects = dict.fromkeys(work.effect for work in works)
    return f"Until it writes again {'; '.join(effects)}."


def _advise(host: str, works: Sequence[_Work], *, is_embedded: bool) -> str:
    if is_embedded:
        return f"It is a thread of `kintsugi up` on {host}: read its log, then restart it."
    units = list(dict.fromkeys(work.unit for work in works))
    hints = "".join(dict.fromkeys(work.hint for work in works))
    return f"On {host}: `systemctl status {' '.join(units)}`, `journalctl -u {units[0]}`.{hints}"


def describe_old_inbox(
    batches: int, size: int, age: timedelta, now: datetime, *, hosts: Sequence[str]
) -> str:
    """`size` in bytes; `hosts`: where its workers are alive."""
    oldest, length = format_moment(now - age), format_duration(age)
    waiting = f"{batches} batches of events ({format_size(size)}) wait in the database's inbox"
    who = "No worker takes them"
    if hosts:
        who = f"The workers on {', '.join(hosts)} do not get on with it"
    return (
        f"{waiting}, the oldest since {oldest}, for {length}. {who}: what machines reported since"
        " is in no incident yet. Nothing is lost: past 2 GiB or an hour receivers keep it on disk."
        " See `systemctl status kintsugi-ingest`, what its journal says, and how busy the database"
        " is."
    )


def describe_old_spool(row: Heartbeat, since: datetime, now: datetime) -> str:
    size, length = format_size(row.backlog_bytes or 0), format_duration(now - since)
    return (
        f"{describe_part(row)} has {size} of events on disk and has delivered nothing since"
        f" {format_moment(since)}, for {length}: they are in no incident yet. Nothing is lost; at"
        " 2 GiB"
        " senders are held back. Either the inbox of the database is full because ingest does not"
        " get on (`systemctl status kintsugi-ingest`), or the database refuses it:"
        f" `journalctl -u kintsugi-receiver` on {row.host} says which."
    )


def describe_full_disk(row: Heartbeat, least: float) -> str:
    """`least` in bytes."""
    free, size = format_size(row.disk_free or 0), format_size(row.disk_size or 0)
    place = f"The file system of {row.directory} on {row.host} has {free} of {size} free"
    effect = "When it is full senders are held back, and what they cannot keep is lost."
    if (row.disk_free or 0) < _MIB:
        effect = (
            "Nothing can be written there: a receiver holds its senders back until there is room,"
            " and what they cannot keep, and what comes by UDP, is lost."
        )
    return (
        f"{place}, as {describe_part(row)} saw at {format_moment(row.seen_at)}: less than the"
        f" {format_size(least)} that spool or database may need. {effect} Make room there (`df -h`,"
        f" `du -xh {row.directory}`), or give it a larger file system."
    )


def describe_wrong_clock(row: Heartbeat, ahead: timedelta) -> str:
    """`ahead` of the database's clock; below zero: behind it."""
    direction = "ahead of" if ahead > timedelta(0) else "behind"
    return (
        f"The clock of {row.host} is {format_duration(abs(ahead))} {direction} the database's, as"
        f" {describe_part(row)} saw at {format_moment(row.seen_at)}. Kintsugi goes by the"
        " database's"
        " clock, so repairs, polls and messages keep their times; lines that this machine dates"
        " itself do not, and munge refuses credentials that seem too old. One of the two is wrong:"
        " `chronyc tracking` on both."
    )


def describe_slow_database(slow: Sequence[Heartbeat], known: int) -> str:
    """`slow`: the processes that see it, of `known` that tell."""
    worst = max(slow, key=lambda row: row.write_s or 0.0)
    return (
        f"{len(slow)} of {known} processes of Kintsugi take over a second to write a row; the worst"
        f" is {describe_part(worst)}, {worst.write_s or 0.0:.1f} s at"
        f" {format_moment(worst.seen_at)}."
        " Events are counted late, and drains wait. See the database's machine (`iostat -x 1`, and"
        " what else runs there) and what it waits for (pg_stat_activity); where only"
        " this machine is busy, see what keeps its processors."
    )


def describe_refusal(rows: Sequence[Heartbeat], now: datetime) -> str:
    """`rows`: the parts that Redis keeps from their work, one at least, each with its trouble."""
    first = min(rows, key=lambda row: row.trouble_since or now)
    since = first.trouble_since or now
    parts = ", ".join(f"{row.part} on {row.host} (process {row.pid})" for row in rows)
    effects = dict.fromkeys(work.effect for row in rows for work in _list_works(row))
    begun = f"Since {format_moment(since)}, for {format_duration(now - since)}"
    return (
        f"{begun}, parts of Kintsugi cannot hand work to each other: {first.trouble} {parts} tell"
        f" of it. Until it is well {'; '.join(effects)}. Nothing is lost: what is due stands in the"
        " database, and goes on within half a minute after that. Drained nodes stay drained."
        " `kintsugi check` on these hosts says whether Redis takes work from there."
    )


def format_size(size: float) -> str:
    if size >= _GIB:
        return f"{size / _GIB:,.1f} GiB"
    return f"{size / _MIB:,.1f} MiB"
