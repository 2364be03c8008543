"""What commands that read cost to start, beside Django with the models alone: CPU of a whole
process, bytecode warm, the best of several."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_ROUNDS = 5
_MODELS_ALONE = """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=[
        "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
        "django.contrib.messages", "incidents", "runbooks",
    ],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    USE_TZ=True,
)
django.setup()
"""
# What a command asks for beyond the models is named beside it.
COMMANDS = {
    "answer": "",
    "approve": "",
    "breaker": "",
    "decommission list": "",
    "inventory check --offline": "",
    "maintenance list": "",
    "mode": "the runbooks",
    "reliability": "numpy and scipy",
    "runbook show": "the runbooks",
    "settings": "",
    "silence list": "",
    "spare list": "",
    "vendor list": "",
    "vendor times": "numpy and scipy",
    "why 1": "",
    "preflight": "all that arming needs",
    "check": "every check",
}


def environment(folder: Path) -> dict[str, str]:
    """A site of its own, with bytecode kept in the folder whatever the caller has set."""
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("KINTSUGI_", "PYTHON", "DATABASE_", "REDIS_", "SLACK_"))
    }
    return kept | {
        "DJANGO_SETTINGS_MODULE": "kintsugi.settings",
        "KINTSUGI_DATA_DIR": str(folder / "data"),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
    }


def cpu_seconds(argv: list[str], environ: dict[str, str]) -> float:
    """The least of several rounds, after one that warms."""
    taken = []
    for _ in range(_ROUNDS + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(taken[1:])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="kintsugi-startup-") as name:
        environ = environment(Path(name))
        migrate = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
        subprocess.run(migrate, cwd=ROOT, env=environ, capture_output=True, check=True)
        yardstick = cpu_seconds([sys.executable, "-c", _MODELS_ALONE], environ)
        print(f"django.setup() with the models alone: {yardstick:.3f} s of CPU")
        setup = cpu_seconds([sys.executable, "-c", "import django; django.setup()"], environ)
        print(f"django.setup() with our settings: {setup:.3f} s, {setup / yardstick:.2f} x")
        for words, extra in COMMANDS.items():
            taken = cpu_seconds([sys.executable, "manage.py", *words.split()], environ)
            beyond = f" (with {extra})" if extra else ""
            print(f"manage.py {words}: {taken:.3f} s, {taken / yardstick:.2f} x{beyond}")


if __name__ == "__main__":
    main()
