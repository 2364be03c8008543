"""Django's settings, made from the table in `kintsugi.configuration.config`."""

from __future__ import annotations

import os
import secrets
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.urls import reverse_lazy

from kintsugi.configuration import config, settings_file
from kintsugi.configuration.part_name import get_part_name
from kintsugi.periodic import periods
from kintsugi.web.appearance import UNFOLD as UNFOLD

BASE_DIR = Path(__file__).resolve().parent.parent
_SOURCES = settings_file.merge(os.environ)
KINTSUGI: dict[str, Any] = config.load(_SOURCES.values, _SOURCES.origins)
DATA_DIR: Path = KINTSUGI["KINTSUGI_DATA_DIR"].absolute()
DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)


def _read_or_create_secret(path: Path) -> str:
    """The embedded mode's own key: made once, readable by its owner alone."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(descriptor, secrets.token_urlsafe(50).encode())
        os.close(descriptor)
    return path.read_text()


# A database host that vanished is noticed within seconds; libpq alone waits for minutes (our
# choice; a site's URL may say otherwise). Times in seconds, tcp_user_timeout in milliseconds.
_CONNECTION_DEFAULTS = {
    "application_name": get_part_name(sys.argv),
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "tcp_user_timeout": "20000",
}
# What the server does for our sessions, as `options` (a site's own follow, and win).
_SESSION_DEFAULTS = {
    # PostgreSQL's advice for SSDs and for what is cached, as all that is open is. With 4, the
    # default for disks, it reads a table of ended incidents whole for the few that are open.
    # https://www.postgresql.org/docs/current/runtime-config-query.html#GUC-RANDOM-PAGE-COST
    "random_page_cost": "1.1",
    # A machine of ours that died leaves no lock behind for longer than this (our choice; PostgreSQL
    # alone asks after two hours).
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "20s",
    # Under the time limit of a task: who waits so long for a lock gives up with an error.
    "lock_timeout": "60s",
}


def make_database(libpq: dict[str, str] | None) -> dict[str, Any]:
    """By libpq's parameters as in DATABASE_URL; None: SQLite in the data directory."""
    if libpq is None:
        return {
            "ENGINE": "kintsugi.sqlite",
            "NAME": DATA_DIR / "kintsugi.sqlite3",
            "TEST": {"NAME": ":memory:"},
            "OPTIONS": {
                "timeout": 20,
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
            },
        }
    options = dict(libpq)
    database: dict[str, Any] = {"ENGINE": "django.db.backends.postgresql"}
    database["NAME"] = options.pop("dbname", "")
    for name in ("user", "password", "host", "port"):
        database[name.upper()] = options.pop(name, "")
    database["CONN_MAX_AGE"] = 60
    database["CONN_HEALTH_CHECKS"] = True
    session = " ".join(f"-c {name}={value}" for name, value in _SESSION_DEFAULTS.items())
    options["options"] = f"{session} {options.get('options', '')}".rstrip()
    database["OPTIONS"] = _CONNECTION_DEFAULTS | options
    return database


HISTORY_DIR: Path = KINTSUGI["KINTSUGI_HISTORY_DIR"] or DATA_DIR / "history"
SECRET_KEY = KINTSUGI["KINTSUGI_SECRET_KEY"] or _read_or_create_secret(DATA_DIR / "secret_key")
DEBUG = False
ALLOWED_HOSTS = KINTSUGI["KINTSUGI_ALLOWED_HOSTS"]
CSRF_TRUSTED_ORIGINS = [KINTSUGI["KINTSUGI_BASE_URL"].rstrip("/")]

# A site runs without the simulator, whose `replay` plays scenarios beside log files: its app comes
# before ours.
_SIMULATOR = ["fixtures"] if KINTSUGI["KINTSUGI_SIMULATOR"] or KINTSUGI["KINTSUGI_IS_DEMO"] else []
INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",
    "unfold.contrib.filters",
    "kintsugi.apps.ConsoleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "incidents",
    "runbooks",
    *_SIMULATOR,
    "kintsugi.health",  # the command `check`
    "kintsugi.apps.KintsugiConfig",
]
MIDDLEWARE = [
    "kintsugi.web.middleware.health.HealthPages",  # first: they know no host name, session or user
    "django.middleware.security.SecurityMiddleware",
    "kintsugi.web.middleware.null_characters.NullCharacterRefusal",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "kintsugi.web.middleware.security_headers.SecurityHeaders",
    "kintsugi.web.middleware.database_away.DatabaseAwayPages",
]
TEMPLATES = [
    {
        "BACKEND": "kintsugi.web.printable_templates.PrintableTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
ROOT_URLCONF = "kintsugi.urls"
WSGI_APPLICATION = "kintsugi.wsgi.application"
DATABASES = {"default": make_database(KINTSUGI["DATABASE_URL"])}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
USE_TZ = True
TIME_ZONE = KINTSUGI["KINTSUGI_TIME_ZONE"]
LANGUAGE_CODE = "en"
STATIC_URL = "static/"
STATIC_ROOT = DATA_DIR / "static"
STATIC_ROOT.mkdir(exist_ok=True)
WHITENOISE_USE_FINDERS = True
LOGIN_URL = reverse_lazy("admin:login")
LOGIN_REDIRECT_URL = reverse_lazy("home")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = KINTSUGI["KINTSUGI_BASE_URL"].startswith("https:")
SESSION_COOKIE_AGE = 12 * 3600  # one shift
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "kintsugi.configuration.log_lines.PrintableFormatter",
            "format": "%(asctime)s %(levelname)s %(name)s: %(message)s",
        }
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        **{name: {"level": "WARNING"} for name in ("waitress", "celery", "kombu")},
        # A node that reboots is no error of ours: what SSH and Slack answer is recorded where it is
        # used.
        **{name: {"level": "CRITICAL"} for name in ("paramiko", "slack_sdk")},
    },
}

# A task is only a signal: inbox and rows keep the work, and sweeps find it within seconds whoever
# dies with it. So tasks are acknowledged early: a late acknowledgement that meets a restarted Redis
# ends the worker (kombu 5.7, AttributeError in `ack`), and would protect nothing that is not kept
# already.
CELERY_BROKER_URL = KINTSUGI["REDIS_URL"] or "memory://localhost/"
CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, float] = (
    {
        "visibility_timeout": 300,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "socket_connect_timeout": 3,
        "socket_timeout": 30,  # a Redis that hangs must not hang the receiver
    }
    if KINTSUGI["REDIS_URL"]
    else {"polling_interval": 0.01}
)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# Celery's default of 100 ends a worker after some 50 min without Redis (kombu waits 32 s at most
# between two attempts). One that stays tells what is wrong, and needs nobody when Redis is back.
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_TASK_ACKS_LATE = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_IGNORE_RESULT = True
CELERY_DB_REUSE_MAX = (
    100_000  # else Celery leaves the database before and after each task; see kintsugi/celery.py
)
CELERY_TASK_TIME_LIMIT = 120  # under half the visibility timeout
CELERY_TASK_DEFAULT_QUEUE = "sweep"
CELERY_TASK_ROUTES = {
    "kintsugi.tasks.ingest": {"queue": "ingest"},
    "kintsugi.tasks.advance": {"queue": "runbook"},
    "kintsugi.tasks.preflight": {"queue": "runbook"},
    "kintsugi.tasks.notify": {"queue": "notify"},
    "kintsugi.tasks.ping": {"queue": "notify"},
    "kintsugi.tasks.page": {"queue": "notify"},
    "kintsugi.tasks.poll": {"queue": "poll"},
    "kintsugi.tasks.ask_reach": {"queue": "slurm"},
    "kintsugi.tasks.compare": {"queue": "slurm"},
    "kintsugi.tasks.update_jobs": {"queue": "slurm"},
    "kintsugi.tasks.look_at_nodes": {"queue": "slurm"},
    "kintsugi.tasks.record_acts": {"queue": "slurm"},
    "kintsugi.tasks.follow_reservations": {"queue": "slurm"},
}
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULER = (  # nothing to remember between starts: what is due stands in rows
    "kintsugi.health.beat_scheduler:ReportingScheduler"
)


def _build_beat_entry(task: str, period: timedelta, queue: str) -> dict[str, Any]:
    """A call that has waited for a whole period is dropped: the next one is there."""
    return {
        "task": f"kintsugi.tasks.{task}",
        "schedule": period,
        "options": {"queue": queue, "expires": period.total_seconds()},
    }


CELERY_BEAT_SCHEDULE = {
    "prune_history": _build_beat_entry("prune_history", periods.PRUNE_HISTORY, "sweep"),
    "sweep": _build_beat_entry("sweep", KINTSUGI["KINTSUGI_SWEEP_EVERY"], "sweep"),
    "poll_due": _build_beat_entry("poll_due", periods.POLL_DUE, "sweep"),
    # What may wait for Slurm. A slurmctld that hangs holds up this queue and no other.
    "ask_reach": _build_beat_entry("ask_reach", periods.ASK_REACH, "slurm"),
    "compare": _build_beat_entry("compare", periods.COMPARE, "slurm"),
    "update_jobs": _build_beat_entry("update_jobs", periods.UPDATE_JOBS_AT_ONCE, "slurm"),
    "look_at_nodes": _build_beat_entry("look_at_nodes", periods.LOOK_AT_NODES_AT_ONCE, "slurm"),
    "record_acts": _build_beat_entry("record_acts", periods.RECORD_ACTS, "slurm"),
    "follow_reservations": _build_beat_entry(
        "follow_reservations", periods.FOLLOW_RESERVATIONS, "slurm"
    ),
}
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
