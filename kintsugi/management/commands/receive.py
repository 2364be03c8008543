"""`manage.py receive`: syslog and SNMP notifications into the spool, and from there to the ingest
queue."""

from __future__ import annotations

import signal
from typing import Any

from django.core.management.base import CommandError

from detectors.receivers.connections import TlsError
from detectors.receivers.spool import SpoolError
from kintsugi import startup
from kintsugi.health import reporter
from kintsugi.management.store import PrintableCommand
from kintsugi.servers import listeners, receiving


class Command(PrintableCommand):
    help = (
        "Receives syslog (KINTSUGI_SYSLOG_LISTEN, KINTSUGI_RELP_LISTEN) and traps"
        " (KINTSUGI_TRAP_LISTEN). One per data directory."
    )
    requires_system_checks = (startup.CONFIGURATION, startup.SERVING)

    def handle(self, *args: Any, **options: Any) -> None:
        startup.require_schema()
        try:
            receiver = receiving.build_receiver()
        except (SpoolError, TlsError, listeners.AddressTaken) as error:
            raise CommandError(str(error)) from error
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: receiver.stop())
        reporter.start(
            [receiving.make_receiver_part(receiver)], wait_until_ready=receiver.ready.wait
        )
        try:
            receiving.run(receiver)
        except listeners.AddressTaken as error:
            raise CommandError(str(error)) from error
