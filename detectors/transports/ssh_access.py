"""How machines are entered over SSH, as a value: to read settings takes no SSH client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Optional


@dataclass(frozen=True)
class SshAccess:
    """How a group of targets is entered. Without a key file the keys of the running agent are
    offered."""

    user: str
    known_hosts: Path
    key_file: Optional[Path] = None
    port: Optional[int] = None
