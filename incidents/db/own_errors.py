"""What people read when Kintsugi itself goes wrong: never the class of an exception. The traceback
goes to the log."""

from __future__ import annotations

from django.db import InterfaceError, OperationalError


def describe(error: Exception) -> str:
    if isinstance(error, OperationalError | InterfaceError):
        return "Kintsugi's own database did not answer in time"
    return "Kintsugi met an error of its own, which its log describes"
