"""How a GPU is reset on its node: the scripts that do it and put back what they stopped. Pure text.

`nvidia-smi --gpu-reset` is refused while anything holds the GPU: persistence mode,
nvidia-persistenced, DCGM, another nvidia-smi. Its manual page: from Ampere on one GPU of an
NVSwitch system can be reset by itself (on Ampere while the Fabric Manager runs, which is therefore
left alone), and without -i all of them are. NVIDIA's Fabric Manager user guide, on NVSwitch errors:
to reset all GPUs and NVSwitches stop the Fabric Manager, reset without -i, start it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from runbooks.node.detached_command import DetachedJob

# What a simulated node, or a person who reads `ps`, knows it by.
NAME = "kintsugi-reset"


class Which(StrEnum):
    """One GPU, or all GPUs of the node with their NVSwitches."""

    PART = "part"
    ALL = "all"


# What holds GPUs on most sites, in the order in which it is stopped: exporters first, since they
# ask DCGM.
UNITS = ("dcgm-exporter", "nvidia-dcgm-exporter", "nvidia-dcgm", "dcgm", "nvidia-persistenced")
FABRIC_MANAGER = "nvidia-fabricmanager"
# A reset takes 5 to 10 s, and longer where all NVSwitches are; past this nvidia-smi hangs. Our
# choice.
_LIMIT_S = 120
_ROOT = f'root() {{ s="sudo -n"; [ "$(id -u)" = 0 ] && s=; timeout -k 5 {_LIMIT_S} $s "$@"; }}'
# What a reset may lose: the driver forgets both with the GPU's software state (NVML,
# nvmlDeviceSetComputeMode and nvmlDeviceSetPowerManagementLimit: not persistent).
_SETTINGS = (
    "settings() { timeout -k 5 30 nvidia-smi --query-gpu=compute_mode,power.limit"
    ' --format=csv,noheader,nounits -i "$1"; }'
)
_COMPUTE_MODES = {"Default": "0", "Prohibited": "2", "Exclusive_Process": "3"}
"""As nvidia-smi shows them, and as its `-c` takes them."""

# $1: part or all; $2: the units; the rest: PCI addresses. What is stopped is written down before,
# since whoever dies here has it started by RESTORE: starting what runs already harms nothing. A GPU
# that is in use for a moment (a look of somebody's) is tried three times.
SCRIPT = f"""{_ROOT}
{_SETTINGS}
kept="$KINTSUGI_APART/stopped"; which=$1; units=$2; shift 2
for unit in $units; do
  systemctl is-active --quiet "$unit" || continue
  echo "unit $unit" >>"$kept"
  root systemctl stop "$unit" || {{ echo "could not stop $unit"; exit 71; }}
done
for pci; do
  mode=$(timeout -k 5 30 nvidia-smi --query-gpu=persistence_mode --format=csv,noheader -i "$pci") || {{
    echo "GPU $pci does not answer: $mode"; exit 72; }}
  now=$(settings "$pci") && echo "$pci $now" >>"$KINTSUGI_APART/settings"
  [ "$mode" = Enabled ] || continue
  echo "mode $pci" >>"$kept"
  root nvidia-smi -pm 0 -i "$pci" || {{ echo "could not end the persistence mode of $pci"; exit 73; }}
done
[ "$which" = part ] || set --
for wait in 5 5 0; do
  if [ $# = 0 ]; then root nvidia-smi --gpu-reset; else root nvidia-smi --gpu-reset -i "$1"; fi
  status=$?; [ $status != 0 ] || exit 0
  sleep $wait
done
exit $status"""  # noqa: E501

# In the reverse order: persistence modes, then the units; then compute modes, which the driver
# keeps while one of these holds the GPU. A power limit is any number of watts, and no line of
# sudoers names them all: one that is lost is told.
RESTORE = f"""{_ROOT}
{_SETTINGS}
kept="$KINTSUGI_APART/stopped"; before="$KINTSUGI_APART/settings"
[ ! -f "$kept" ] || sed '1!G;h;$!d' "$kept" | while read -r kind what; do
  case $kind in
    unit) root systemctl start "$what" || echo "could not start $what again" ;;
    mode) root nvidia-smi -pm 1 -i "$what" || echo "could not set the persistence mode of $what again" ;;
  esac
done
[ ! -f "$before" ] || while IFS=' ,' read -r pci compute power; do
  now=$(settings "$pci") || {{ echo "could not set the compute mode of $pci again: it does not answer"; continue; }}
  case $compute in {"".join(f"{name}) mode={number} ;; " for name, number in _COMPUTE_MODES.items())}*) continue ;; esac
  [ "${{now%%,*}}" = "$compute" ] || root nvidia-smi -c "$mode" -i "$pci" || echo "could not set the compute mode of $pci again"
  [ "${{now#*, }}" = "$power" ] || echo "could not set the power limit of $pci again: it is ${{now#*, }} W and was $power W"
done <"$before"
:"""  # noqa: E501

_NOT_AGAIN = ("could not start ", "could not set ")


def build_job(
    key: str, which: Which, gpus: Sequence[str], *, more_units: Sequence[str] = ()
) -> DetachedJob:
    """The reset of these GPUs (PCI addresses), once under this key, with what it stops put back
    however it ends."""
    fabric = (FABRIC_MANAGER,) if which is Which.ALL else ()
    units = " ".join((*more_units, *UNITS, *fabric))
    return DetachedJob(
        key, ("sh", "-c", SCRIPT, NAME, which.value, units, *gpus), after=RESTORE, shown=8000
    )


def list_unrestored(output: str) -> list[str]:
    """What the script could not start again, in its words."""
    lines = output.splitlines()
    return [line for line in lines if line.startswith(_NOT_AGAIN) and " again" in line]


def list_commands(gpus: Sequence[str], more_units: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """All that the scripts do as root on a node with these GPUs: for the lines of sudoers."""
    found: list[tuple[str, ...]] = []
    for unit in (*more_units, *UNITS, FABRIC_MANAGER):
        found += [("systemctl", "stop", unit), ("systemctl", "start", unit)]
    for gpu in gpus:
        found += [("nvidia-smi", "-pm", mode, "-i", gpu) for mode in ("0", "1")]
        found += [("nvidia-smi", "-c", mode, "-i", gpu) for mode in _COMPUTE_MODES.values()]
    found += [("nvidia-smi", "--gpu-reset", "-i", gpu) for gpu in gpus]
    return [*found, ("nvidia-smi", "--gpu-reset")]
