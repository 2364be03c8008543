"""Our own log, which people read in a terminal: it quotes what others wrote."""

from __future__ import annotations

import logging

from detectors.resources import printable


class PrintableFormatter(logging.Formatter):
    """Of what a record quotes nothing is for a terminal to obey."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))
