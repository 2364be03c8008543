"""Time zones by name, as people write them in settings, inventories and on the command line.

Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo

# "Use only ASCII letters, '.', '-' and '_'", components of 14 characters at most; Etc/GMT+5 has a
# digit and a plus (the tz database, `theory.html`, Timezone identifiers). The longest of 2025b has
# 32 characters. No name in use has a dot, and zoneinfo takes one for a package's.
_NAME = re.compile(r"[A-Za-z0-9_+-]{1,32}(?:/[A-Za-z0-9_+-]{1,32}){0,3}")


def get_zone(name: str) -> ZoneInfo:
    """The zone of that name, such as Asia/Tokyo. Raises ValueError where there is none."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name[:80]}: no IANA time zone")
    try:
        return ZoneInfo(name)
    except (KeyError, OSError) as error:
        raise ValueError(f"{name}: no IANA time zone") from error
