"""`python -m detectors explain`: what Kintsugi makes of log lines. No database, no Django."""

from __future__ import annotations

import sys

from detectors.explain import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
