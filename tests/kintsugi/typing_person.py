"""Somebody who types a command through sudo, on a machine whose kernel knows of no login."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kintsugi.management import person


def types(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(person, "LOGIN_UID", Path("/proc/self/none"))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setenv("SUDO_USER", name)
