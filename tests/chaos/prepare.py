"""A new database with nodes, of which all but the last have lost their first GPU, and the reboot
runbook armed.

`python -m tests.chaos.prepare NODE=ADDRESS:PORT...`, with the database in the environment.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import django

django.setup()

from django.core.management import call_command  # noqa: E402 - after Django

from incidents.models import Node  # noqa: E402
from runbooks.models import Mode  # noqa: E402
from tests.runbooks.site import Site  # noqa: E402


def main() -> None:
    call_command("migrate", verbosity=0)
    tables = Site(nodes=0, mode=Mode.ARMED)
    tables.now = datetime.now(UTC)
    for word in sys.argv[1:]:
        node, _, where = word.partition("=")
        address, _, port = where.rpartition(":")
        tables.add_node(node)
        Node.objects.filter(name=node).update(address=address, ssh_port=int(port))
    for word in sys.argv[1:-1]:
        node = word.partition("=")[0]
        tables.raise_fault(node, resource=f"node/{node}/gpu/0000:19:00.0")


if __name__ == "__main__":
    main()
