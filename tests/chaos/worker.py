"""A worker as a process of its own, killed by SIGKILL at a named point of a named step.

`python -m tests.chaos.worker RUN STEP POINT CONF BOOTS NODE`, with the database in the environment.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import django

django.setup()

from runbooks.models import Run  # noqa: E402 - models load after Django
from tests.runbooks.real_site import RealSite  # noqa: E402


def main() -> None:
    run_id, step, point, conf, boots, node = sys.argv[1:]
    site = RealSite(Path(conf), Path(boots), [node], lost=[f"{node}/gpu/0"])

    def die(reached: str) -> None:
        run = Run.objects.get(pk=run_id)
        if reached == point and run.plan[run.step]["step"] == step:
            os.kill(os.getpid(), signal.SIGKILL)

    site.play(int(run_id), at=die)


if __name__ == "__main__":
    main()
