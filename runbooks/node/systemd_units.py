"""Which systemd units may be started again on a node, and the script that does it. Pure text.

A closed table: what is restarted is named here, or is a mount that the inventory says the node
has. No name that a line of a log, a report or a node's answer holds comes into a command.

One mechanism serves both. systemd makes a mount unit of each line of /etc/fstab
(systemd-fstab-generator(8)), so that `systemctl start lustre.mount` mounts what fstab says there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from detectors.expected import Expected
from runbooks.node.detached_command import DetachedJob

# What a simulated node, or a person who reads `ps`, knows it by.
NAME = "kintsugi-units"
# The fact of a run: when a unit was last asked to start. What was seen before is of another state.
RESTARTED_AT = "restarted_at"
SERVICE_DOWN = "node.service.down"
MOUNT_MISSING = "storage.mount.missing"


@dataclass(frozen=True)
class Service:
    """`source`: where the unit's name comes from, and that it may be restarted on an idle node."""

    name: str
    source: str


# In the order in which they are started: what others need comes first, slurmd last, since with it
# the node registers.
SERVICES = (
    Service("munge", "https://github.com/dun/munge/blob/master/src/etc/munge.service.in"),
    Service(
        "nvidia-persistenced",
        "https://download.nvidia.com/XFree86/Linux-x86_64/550.54.14/README/nvidia-persistenced.html",
    ),
    # Jobs fail while it is stopped, and it configures the NVSwitches anew: GPUs idle.
    Service(
        "nvidia-fabricmanager",
        "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
    ),
    Service(
        "nvidia-imex",
        "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/gettingstarted.html",
    ),
    Service("nvidia-dcgm", "https://docs.nvidia.com/datacenter/dcgm/latest/installation.html"),
    Service("slurmd", "https://github.com/SchedMD/slurm/blob/master/etc/slurmd.service.in"),
)
_NAMES = tuple(service.name for service in SERVICES)
# A unit has 90 s to start where it says nothing else (systemd-system.conf(5),
# DefaultTimeoutStartSec); the Fabric Manager trains links before it answers. Our choice.
_LIMIT_S = 240
# A mount is started and never restarted: one that has come back meanwhile is not taken away.
SCRIPT = f"""root() {{ s="sudo -n"; [ "$(id -u)" = 0 ] && s=; timeout -k 5 {_LIMIT_S} $s "$@"; }}
failed=0
for unit; do
  verb=restart; case $unit in *.mount) verb=start ;; esac
  if root systemctl $verb "$unit"; then echo "$unit: asked to $verb"
  else echo "could not $verb $unit"; failed=1; fi
done
exit $failed"""


def find_unit(fault_type: str, name: str, expected: Expected) -> str:
    """The unit behind what a detector saw missing: a service, or a mount point; empty where it is
    neither in the table nor a mount of the inventory."""
    if fault_type == SERVICE_DOWN:
        return f"{name}.service" if name in _NAMES else ""
    mounts = [mount.rstrip("/") for mount in expected.mounts]
    is_known = fault_type == MOUNT_MISSING and name.startswith("/") and name in mounts
    return format_mount_unit(name) if is_known else ""


def sort_units(units: Sequence[str]) -> list[str]:
    """As the table has them; mounts before slurmd, outer mounts before those within."""
    order = {f"{name}.service": index for index, name in enumerate(_NAMES)}
    last = order["slurmd.service"]
    return sorted(set(units), key=lambda unit: (order.get(unit, last - 0.5), unit))


def format_mount_unit(path: str) -> str:
    """As `systemd-escape --path --suffix=mount`: systemd.unit(5), string escaping for inclusion in
    unit names."""
    inner = "/".join(word for word in path.split("/") if word)
    if not inner:
        return "-.mount"
    escaped = "".join(
        _escape(byte, is_first=index == 0) for index, byte in enumerate(inner.encode())
    )
    return f"{escaped}.mount"


def _escape(byte: int, *, is_first: bool) -> str:
    letter = chr(byte)
    if letter == "/":
        return "-"
    is_plain = byte < 128 and (letter.isalnum() or letter in ":_.")
    return letter if is_plain and not (is_first and letter == ".") else f"\\x{byte:02x}"


def build_job(key: str, units: Sequence[str]) -> DetachedJob:
    """The restart of these units, once under this key."""
    return DetachedJob(key, ("sh", "-c", SCRIPT, NAME, *units))


def list_commands(expected: Expected) -> list[tuple[str, ...]]:
    """All that the script may do as root on such a node: for the lines of sudoers."""
    commands: list[tuple[str, ...]] = [
        ("systemctl", "restart", f"{name}.service") for name in _NAMES
    ]
    mounts = (mount for mount in expected.mounts if mount.startswith("/"))
    for mount in dict.fromkeys(mounts):
        commands.append(("systemctl", "start", format_mount_unit(mount)))
    return commands
