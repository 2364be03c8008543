"""`python -m detectors explain | parse | check`: what Kintsugi makes of log lines, captures, and
this node.

No database, no Django. Each command loads what it needs alone: `check` answers from its cache
within milliseconds.
"""

from __future__ import annotations

import importlib
import sys

_COMMANDS = {
    "explain": "detectors.cli.explain",
    "parse": "detectors.cli.parse",
    "check": "detectors.cli.check",
}


def main(words: list[str]) -> int:
    """Exit code of the command; `explain` shows the usage of a word that is none."""
    name = words[0] if words and words[0] in _COMMANDS else "explain"
    rest = words[1:] if name != "explain" else words
    return int(importlib.import_module(_COMMANDS[name]).main(rest))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
