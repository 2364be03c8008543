"""What must hold before Kintsugi serves or acts, as Django system checks. They load what they look
at: `kintsugi.startup` says who asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from detectors.catalog import catalog
from detectors.catalog.catalog import CatalogError
from detectors.detector import DetectorError
from detectors.receivers.senders import RefusedCertificates
from detectors.transports import error_text
from detectors.transports.ssh import SshShell
from incidents.correlation.rules import CorrelationError
from incidents.state import site_rules
from kintsugi.clients import credentials
from runbooks.guards import job_policy
from runbooks.library import library

_SAFE_POLICY = "noeviction"
_TIMEOUT_S = 2.0


def check_redis_eviction(app_configs: Any, **_: Any) -> Sequence[checks.CheckMessage]:
    """`allkeys-lru` and its kin drop whole queues in silence when memory is short; the sweep would
    hide it for long."""
    url = settings.KINTSUGI["REDIS_URL"]
    if url is None:
        return []
    client = redis.Redis.from_url(url, socket_connect_timeout=_TIMEOUT_S, socket_timeout=_TIMEOUT_S)
    try:
        policy = str(client.info("memory").get("maxmemory_policy", ""))
    except redis.RedisError as error:
        why = error_text.format_reason(error).rstrip(".")
        words = f"REDIS_URL does not answer: {why}. Faults wait until it does."
        return [
            checks.Warning(words, hint="Start Redis, or correct REDIS_URL.", id="kintsugi.W001")
        ]
    finally:
        client.close()
    if policy == _SAFE_POLICY:
        return []
    words = f"REDIS_URL: this Redis may evict queues (maxmemory-policy is {policy})."
    return [
        checks.Error(
            words, hint=f"Set `maxmemory-policy {_SAFE_POLICY}` in redis.conf.", id="kintsugi.E001"
        )
    ]


def check_node_access(app_configs: Any, **_: Any) -> Sequence[checks.CheckMessage]:
    """A key or a list of host keys that cannot be read would make every node look unreachable."""
    values = settings.KINTSUGI
    known_hosts = Path(values["KINTSUGI_SSH_KNOWN_HOSTS"] or Path.home() / ".ssh" / "known_hosts")
    key = Path(values["KINTSUGI_SSH_KEY"]) if values["KINTSUGI_SSH_KEY"] else None
    hint = "Correct KINTSUGI_SSH_KEY or the host keys."
    try:
        path, acts = values["KINTSUGI_CREDENTIALS"], bool(values["KINTSUGI_ACTS"])
        given = credentials.load(path, with_bmc=acts) if path else None
        shell = SshShell(user="", key_file=key, known_hosts=known_hosts)
        hint = "Correct the file of KINTSUGI_CREDENTIALS, or what it names."
        for group in given.groups if given is not None else ():
            if group.ssh is not None:
                shell.check(group.ssh)
    except (DetectorError, ImproperlyConfigured) as error:
        return [checks.Error(str(error), hint=hint, id="kintsugi.E002")]
    if key is not None and not known_hosts.exists():
        words = (
            f"KINTSUGI_SSH_KNOWN_HOSTS: {known_hosts} does not exist, so no machine is trusted over"
            " SSH yet."
        )
        return [
            checks.Warning(
                words, hint="`kintsugi inventory host-keys` shows the keys.", id="kintsugi.W003"
            )
        ]
    return []


def check_refused_certificates(app_configs: Any, **_: Any) -> Sequence[checks.CheckMessage]:
    """The receiver goes on with the list of before, and does not start again without one."""
    path = settings.KINTSUGI["KINTSUGI_TLS_REFUSED"]
    if not path:
        return []
    try:
        RefusedCertificates(Path(path))
    except (OSError, ValueError) as error:
        words = f"KINTSUGI_TLS_REFUSED: {error}"
        hint = (
            "Correct the file: until then the receiver takes no change of it, and does not start."
        )
        return [checks.Warning(words, hint=hint, id="kintsugi.W004")]
    return []


def check_catalogue(app_configs: Any, **_: Any) -> Sequence[checks.CheckMessage]:
    """A row that is read wrongly would raise faults of what is well, or hide what is not."""
    try:
        catalog.load()
    except CatalogError as error:
        hint = (
            "Correct the files of KINTSUGI_CATALOG_DIR; docs/reference/catalogue.md has the form."
        )
        return [checks.Error(str(error), hint=hint, id="kintsugi.E006")]
    return []


def check_correlation(app_configs: Any, **_: Any) -> Sequence[checks.CheckMessage]:
    """A rule that is read wrongly would join what does not belong together, and nobody would be
    told of it."""
    try:
        site_rules.load_joining_rules()
        site_rules.load_counting_rules()
    except CorrelationError as error:
        hint = (
            "Correct the files of KINTSUGI_CORRELATION; docs/reference/correlation.md and"
            " docs/reference/gathering.md have the format."
        )
        return [checks.Error(str(error), hint=hint, id="kintsugi.E003")]
    return []


def check_runbooks(app_configs: Any, **_: Any) -> Sequence[checks.CheckMessage]:
    """A runbook that is read wrongly would be found out when a node is already drained."""
    try:
        library.load()
    except library.LibraryError as error:
        hint = (
            "Correct the files of KINTSUGI_RUNBOOKS; `kintsugi runbook lint FILE` looks at one at"
            " a time."
        )
        return [checks.Error(str(error), hint=hint, id="kintsugi.E004")]
    return []


def check_job_policy(app_configs: Any, **_: Any) -> Sequence[checks.CheckMessage]:
    """A table that is read wrongly would be found out when jobs are already in the way."""
    path: Path | None = settings.KINTSUGI["KINTSUGI_JOB_POLICY"]
    if path is None:
        return []
    try:
        job_policy.load(path)
    except job_policy.JobPolicyError as error:
        hint = "Correct the file of KINTSUGI_JOB_POLICY; docs/reference/steps.md has the form."
        return [checks.Error(str(error), hint=hint, id="kintsugi.E007")]
    return []


CHECKS = (
    check_redis_eviction,
    check_node_access,
    check_refused_certificates,
    check_catalogue,
    check_correlation,
    check_runbooks,
    check_job_policy,
)
