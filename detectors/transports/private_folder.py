"""Where our own user keeps locks and outputs on a machine, so that no other user's file stands in
the way.

`/run/kintsugi/<any name>` of `deploy/nodes/tmpfiles.d`, else a folder with a name that nobody can
foresee. Either is taken only where it is a directory of ours that nobody else may enter. Python
3.9, standard library alone.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Optional

PREPARED = "/run/kintsugi"
# Local, empty after a boot, and never on a file system that may hang.
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - what other users put there is not taken
_MODE = 0o700

# Sets `d` to it, below the folder in `b` where none was prepared; ends with 73 (EX_CANTCREAT) where
# none can be made. `find` names only what is ours: others may fill the folder as they like.
SHELL = f"""umask 077; u=$(id -u)
own() {{ find "$@" -mindepth 1 -maxdepth 1 -type d -user "$u" -perm 0700 2>/dev/null; }}
d=$(own {PREPARED} | head -n 1)
[ -n "$d" ] || d=$(own "$b" -name "kintsugi-$u*" | sort | head -n 1)
[ -n "$d" ] || d=$(mktemp -d "$b/kintsugi-$u-XXXXXXXX") || exit 73
"""


def find_private_folder() -> Path:
    """The same for this process. Raises OSError where none can be made."""
    prefix = f"kintsugi-{os.geteuid()}"
    found = _find_own(PREPARED, "") or _find_own(SHARED_MEMORY, prefix)
    return found or Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=SHARED_MEMORY))


def _find_own(parent: str, prefix: str) -> Optional[Path]:
    try:
        names = sorted(name for name in os.listdir(parent) if name.startswith(prefix))
    except OSError:
        return None
    return next((Path(parent, name) for name in names if _is_own(Path(parent, name))), None)


def _is_own(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    is_private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == _MODE
    return is_private and found.st_uid == os.geteuid()
