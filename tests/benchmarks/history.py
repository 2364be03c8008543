"""What years of history cost those who work today: `python -m tests.benchmarks.history [faults]`.

Two databases of one private PostgreSQL hold the same open faults and incidents; one of them holds
300,000 ended faults besides, with 75,000 closed incidents, their timelines, decisions, evidence and
messages, over two years and some 600 to a fingerprint. The same batches, sweeps and pages are done
in turns on both: the ratio is of one run on one machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from statistics import median
from typing import Any

from tests.services.postgres import Postgres

HISTORY = 300_000
TURNS = 7
NODES, BUSY, STANDING, BATCH = 1_000, 100, 600, 100
AIM = 1.2
# Rows are copied from open ones, with other keys and times.
_FIRST_ID = 1_000_000
_TABLES = ("evidence", "incidentfault", "timelineentry", "notification", "decision")


@dataclass
class Side:
    """One of the two databases, with a stream of its own and what each thing took there, in ms."""

    name: str
    stream: Any
    took: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, what: str, act: Callable[[], object]) -> None:
        began = time.perf_counter()
        act()
        self.took.setdefault(what, []).append((time.perf_counter() - began) * 1_000)


def main() -> int:
    faults = int(sys.argv[1]) if sys.argv[1:] else HISTORY
    server = Postgres().start()
    with tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as scratch:
        os.environ.update(
            DATABASE_URL=server.url,
            KINTSUGI_DATA_DIR=scratch,
            DJANGO_SETTINGS_MODULE="kintsugi.settings",
            KINTSUGI_ALLOWED_HOSTS="testserver",
        )
        try:
            _report(_compare(faults))
        finally:
            server.remove()
    return 0


def _compare(faults: int) -> tuple[Side, Side]:
    from fixtures.stream.site import Site  # noqa: PLC0415  the settings name the server
    from tests.benchmarks import correlation  # noqa: PLC0415

    site = Site(NODES)
    load = correlation.Load(NODES, BUSY, STANDING, BATCH)
    fresh = Side("postgres", correlation.Stream(site, load))
    aged = Side("aged", correlation.Stream(site, load))
    _prepare(site, fresh.stream)
    _copy_database(fresh.name, aged.name)
    _use(aged.name)
    _add_history(faults)
    for _ in aged.stream.first():  # its faults stand already
        pass
    aged.stream.now = fresh.stream.now
    for turn in range(TURNS):
        for side in (fresh, aged) if turn % 2 else (aged, fresh):
            _use(side.name)
            _work(side)
    return fresh, aged


def _prepare(site: Any, stream: Any) -> None:
    from django.contrib.auth.models import User  # noqa: PLC0415
    from django.core.management import call_command  # noqa: PLC0415

    from incidents import services  # noqa: PLC0415
    from tests.benchmarks import correlation  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    correlation._import(site)
    for batch in stream.first():
        services.ingest(batch, now=stream.now)
        stream.now += timedelta(minutes=5)
    stream.now += timedelta(hours=1)
    services.sweep(now=stream.now)
    User.objects.create_superuser("bench")


def _copy_database(source: str, target: str) -> None:
    from django.db import connection  # noqa: PLC0415

    connection.close()
    _use("template1")
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {target} TEMPLATE {source}")


def _use(name: str) -> None:
    from django.core.cache import cache  # noqa: PLC0415
    from django.db import connection  # noqa: PLC0415

    connection.close()
    connection.settings_dict["NAME"] = name
    cache.clear()
    connection.ensure_connection()


def _work(side: Side) -> None:
    from django.db import connection  # noqa: PLC0415

    from incidents import services  # noqa: PLC0415
    from incidents.notify import services as messages  # noqa: PLC0415
    from runbooks import services as runbooks  # noqa: PLC0415

    now = side.stream.now
    services.sweep(now=now)  # plans and caches of a new connection are paid by neither
    batch = side.stream.next()
    side.measure("ingest, a batch of 100", lambda: services.ingest(batch, now=side.stream.now))
    side.measure("sweep", lambda: services.sweep(now=side.stream.now))
    side.measure("messages due", lambda: messages.list_due(side.stream.now))
    side.measure("outcomes", lambda: runbooks.evaluate_outcomes(side.stream.now))
    side.measure("runs due", lambda: runbooks.get_due_runs(side.stream.now))
    for name, address in _addresses():
        side.measure(f"page {name}", partial(_get, address))
    connection.close()


def _get(address: str) -> None:
    from django.contrib.auth.models import User  # noqa: PLC0415
    from django.test import Client  # noqa: PLC0415

    client = Client()
    client.force_login(User.objects.get(username="bench"))
    answer = client.get(address)
    if answer.status_code != 200:
        raise RuntimeError(f"{address}: {answer.status_code}")


def _addresses() -> list[tuple[str, str]]:
    from incidents.models import Incident, Node  # noqa: PLC0415

    number = Incident.objects.open().order_by("pk").values_list("pk", flat=True)[0]
    node = Node.objects.order_by("name").values_list("pk", flat=True)[0]
    return [
        ("home, numbers anew", "/"),  # once a minute
        ("home", "/"),
        ("incident", f"/incidents/incident/{number}/change/"),
        ("incidents", "/incidents/incident/"),
        ("open incidents", "/incidents/incident/?state=unfinished"),
        ("faults", "/incidents/fault/"),
        ("active faults", "/incidents/fault/?is_active__exact=1"),
        ("messages", "/incidents/notification/"),
        ("nodes", "/incidents/node/"),
        ("node", f"/incidents/node/{node}/change/"),
        ("report", "/report/"),
        ("shadow", "/shadow/"),
    ]


# History
# ---------------------------------------------------------------------------


def _add_history(faults: int) -> None:
    """Ended faults spread over all machines and two years; each fourth the root of a closed
    incident."""
    from django.db import connection  # noqa: PLC0415

    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(
            "CREATE TEMP TABLE machine AS SELECT row_number() OVER (ORDER BY name) - 1 AS n, id,"
            " 'node/' || name AS owner FROM incidents_node"
        )
        _add_faults(cursor, faults)
        _add_incidents(cursor, faults)
        for table in _TABLES:
            _add_rows_of_incidents(cursor, f"incidents_{table}")
        cursor.execute("RESET session_replication_role")
        cursor.execute("ANALYZE")


def _columns(cursor: Any, table: str, changed: dict[str, str], source: str) -> tuple[str, str]:
    """The table's columns, and what goes into each: what is given here, else the source's."""
    cursor.execute(f"SELECT * FROM {table} LIMIT 0")
    names = [column[0] for column in cursor.description]
    values = [changed.get(name, f"{source}.{name}") for name in names]
    return ", ".join(names), ", ".join(values)


def _add_faults(cursor: Any, faults: int) -> None:
    cursor.execute(
        "CREATE TEMP TABLE fault AS SELECT row_number() OVER (ORDER BY id) - 1 AS n, *"
        " FROM incidents_fault WHERE is_active ORDER BY id LIMIT 500"
    )
    at = f"(now_at - (1 - g::float / {faults}) * interval '2 years')"
    changed = {
        "id": f"{_FIRST_ID} + g",
        "is_active": "false",
        "owner": "machine.owner",
        "cleared_at": at,
        "raised_at": f"{at} - interval '1 hour'",
        "held_until": "NULL",
        "clears_at": "NULL",
        **dict.fromkeys(("last_seen_at", "observed_at", "recorded_at"), at),
    }
    names, values = _columns(cursor, "incidents_fault", changed, "fault")
    cursor.execute(
        f"INSERT INTO incidents_fault ({names}) SELECT {values} FROM generate_series(1, {faults}) g"
        " JOIN fault ON fault.n = g % (SELECT count(*) FROM fault)"
        " JOIN machine ON machine.n = g % (SELECT count(*) FROM machine),"
        " (SELECT max(last_seen_at) AS now_at FROM incidents_fault) latest"
    )


def _add_incidents(cursor: Any, faults: int) -> None:
    cursor.execute(
        "CREATE TEMP TABLE incident AS SELECT row_number() OVER (ORDER BY id) - 1 AS n, *"
        " FROM incidents_incident ORDER BY id LIMIT 100"
    )
    changed = {
        "id": "ended.id",
        "state": "'resolved'",
        "root_fault_id": "ended.id",
        "root_resource": "ended.resource",
        "owner": "ended.owner",
        "node_id": "machine.id",
        "duplicate_of_id": "NULL",
        "follows_id": "NULL",
        "needs_human": "''",
        "held_until": "NULL",
        **dict.fromkeys(("opened_at", "onset_at", "recorded_at"), "ended.raised_at"),
        **dict.fromkeys(("restored_at", "closed_at", "updated_at"), "ended.cleared_at"),
    }
    names, values = _columns(cursor, "incidents_incident", changed, "incident")
    cursor.execute(
        f"INSERT INTO incidents_incident ({names}) SELECT {values} FROM incidents_fault ended"
        " JOIN incident ON incident.n = ended.id % (SELECT count(*) FROM incident)"
        " JOIN machine ON machine.owner = ended.owner"
        f" WHERE ended.id > {_FIRST_ID} AND ended.id % 4 = 0"
    )


def _add_rows_of_incidents(cursor: Any, table: str) -> None:
    """Of each closed incident: its members with evidence, five entries, four decisions, three
    messages."""
    of_fault = {"fault_id": "ended.id", "occurred_at": "ended.cleared_at"}
    of_incident = {
        "incident_id": "closed.id",
        "occurred_at": "closed.opened_at",
        "recorded_at": "closed.opened_at",
    }
    ended, closed = "incidents_fault ended", "incidents_incident closed"
    sent = {"state": "'sent'", "sequence": "k", "entry_id": "NULL", "due_at": "closed.opened_at"}
    by_table: dict[str, tuple[str, int, dict[str, str]]] = {
        "incidents_evidence": (ended, 2, {**of_fault, "slot": "k"}),
        "incidents_incidentfault": (
            ended,
            1,
            {**of_fault, "incident_id": "ended.id - ended.id % 4"},
        ),
        "incidents_timelineentry": (closed, 5, of_incident),
        "incidents_notification": (closed, 3, {**of_incident, **sent}),
        "incidents_decision": (closed, 4, {**of_incident, "fault_id": "closed.id"}),
    }
    source, rows_each, changed = by_table[table]
    changed = {**changed, "id": f"{_FIRST_ID}::bigint * 10 + row_number() OVER ()"}
    names, values = _columns(cursor, table, changed, "pattern")
    cursor.execute(
        f"INSERT INTO {table} ({names}) SELECT {values} FROM {source}"
        f" CROSS JOIN generate_series(1, {rows_each}) k"
        f" CROSS JOIN (SELECT * FROM {table} LIMIT 1) pattern"
        f" WHERE {source.split()[1]}.id >= {_FIRST_ID + 4}"
    )


def _report(sides: tuple[Side, Side]) -> None:
    fresh, aged = sides
    worst = 0.0
    for what, before in fresh.took.items():
        before_ms, after_ms = median(before), median(aged.took[what])
        ratio = after_ms / before_ms
        worst = max(worst, ratio)
        _say(f"{what:24} {before_ms:8.1f} ms fresh {after_ms:8.1f} ms with history {ratio:6.2f} x")
    _say(f"the worst ratio is {worst:.2f} (aim within {AIM})")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
