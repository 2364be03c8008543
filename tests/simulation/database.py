"""A database in memory for plays outside pytest."""

from __future__ import annotations

import os
import tempfile

import django


def prepare() -> None:
    """Settings of a site without any, SQLite in memory, all migrations."""
    for name in [name for name in os.environ if name.startswith(("KINTSUGI_", "SLACK_"))]:
        del os.environ[name]
    os.environ.pop("DATABASE_URL", None)
    os.environ["DJANGO_SETTINGS_MODULE"] = "kintsugi.settings"
    os.environ["KINTSUGI_DATA_DIR"] = tempfile.mkdtemp(prefix="kintsugi-plays-")
    os.environ["KINTSUGI_SIMULATOR"] = "yes"
    django.setup()
    from django.db import connection  # noqa: PLC0415 - reads the settings

    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
