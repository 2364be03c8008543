#!/usr/bin/env python
"""Kintsugi's command line in a checkout; `kintsugi` is the one of a site (docs/commands.md)."""

import os
import sys

from django.core.management import execute_from_command_line

SIMULATOR_COMMANDS = ("demo", "inject", "replay", "scenario")

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kintsugi.settings")
    if sys.argv[1:2] and sys.argv[1] in SIMULATOR_COMMANDS:
        os.environ.setdefault("KINTSUGI_SIMULATOR", "yes")
    execute_from_command_line(sys.argv)
