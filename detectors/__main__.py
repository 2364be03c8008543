"""`python -m detectors explain | parse`: what Kintsugi makes of log lines and captures. No database, no Django."""

from __future__ import annotations

import sys

from detectors import explain, parse

_COMMANDS = {"parse": parse.main}

if __name__ == "__main__":
    run = _COMMANDS.get(sys.argv[1]) if len(sys.argv) > 1 else None
    sys.exit(run(sys.argv[2:]) if run is not None else explain.main(sys.argv[1:]))
