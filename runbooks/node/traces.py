"""What Kintsugi has left on a node: what our own user may remove is removed over SSH, our key last,
and what only the node's root may remove is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

from detectors.detector import DetectorError, Shell, Target
from detectors.transports.private_folder import PREPARED, SHARED_MEMORY

_TIMEOUT = timedelta(seconds=20)
# Each waits for its node, not for the processor.
_AT_ONCE = 16
CHECK = "kintsugi-check"
_WORDS = ("found", "removed", "remains", "hidden")
# What docs/reference/node-check.md, docs/inventory.md and docs/deploy.md have an administrator
# install.
OF_ROOT = (
    "/etc/sudoers.d/kintsugi",
    "/usr/lib/tmpfiles.d/kintsugi-node.conf",
    "/usr/local/sbin/kintsugi-check",
    "/usr/local/sbin/kintsugi-health",
    "/etc/kintsugi/node-token",
    "/etc/kintsugi/expected.json",
    "/var/lib/kintsugi-check",
)
# $1 is the key as it stands in authorized_keys, or empty; $2 is "yes" to remove, all further words
# are paths of root's. One line for each thing: a word, then what.
_SCRIPT = f"""
key=$1; acts=$2; shift 2; file=$HOME/.ssh/authorized_keys; u=$(id -u)
if crontab -l 2>/dev/null | grep -q '{CHECK}'; then
  if [ "$acts" = yes ]; then
    crontab -l | grep -v '{CHECK}' | crontab - && echo "removed its lines of the crontab"
  else echo "found its lines of the crontab"; fi
fi
for folder in {PREPARED}/* {SHARED_MEMORY}/kintsugi-"$u"-*; do
  [ -d "$folder" ] && [ ! -L "$folder" ] && [ -O "$folder" ] || continue
  if [ "$acts" = yes ]; then
    find "$folder" -mindepth 1 -delete && echo "removed what is in $folder"
  else echo "found $folder"; fi
done
for path in "$@"; do [ -e "$path" ] && echo "remains $path"; done
if [ -n "$key" ] && grep -qF -- "$key" "$file" 2>/dev/null; then
  if [ "$acts" = yes ]; then
    new=$(mktemp "$file.XXXXXX") && cp -p "$file" "$new"
    grep -vF -- "$key" "$file" > "$new"
    mv "$new" "$file" && echo "removed our key from $file"
  else echo "found our key in $file"; fi
elif [ -n "$key" ]; then echo "hidden our key, which is not in $file: wherever sshd takes it from"
fi
exit 0
"""


@dataclass(frozen=True)
class Traces:
    """Of one node. `remains` are paths that only its root may remove, `hidden` what our user cannot
    find; `complaint` says why it could not be asked."""

    node: str
    found: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    remains: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    complaint: str = ""


def look_after(
    shell: Shell, entries: Iterable[tuple[Target, str]], *, removes: bool
) -> Iterator[Traces]:
    """Each target with our public key there, as it stands in authorized_keys; in order."""
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as at_once:
        yield from at_once.map(lambda entry: _ask(shell, *entry, removes=removes), entries)


def build_command(key: str, *, removes: bool) -> tuple[str, ...]:
    """`key` is our public key as it stands in authorized_keys; empty to leave it alone."""
    return ("sh", "-c", _SCRIPT, CHECK, key, "yes" if removes else "no", *OF_ROOT)


def _ask(shell: Shell, target: Target, key: str, *, removes: bool) -> Traces:
    try:
        output = shell.run(target, build_command(key, removes=removes), _TIMEOUT)
    except DetectorError as error:
        return Traces(target.name, complaint=str(error))
    if output.status != 0:
        return Traces(target.name, complaint=output.complaint)
    said: dict[str, list[str]] = {word: [] for word in _WORDS}
    for line in output.text.splitlines():
        word, _, what = line.partition(" ")
        if word in said:
            said[word].append(what)
    traces = {word: tuple(paths) for word, paths in said.items()}
    return Traces(
        target.name,
        found=traces["found"],
        removed=traces["removed"],
        remains=traces["remains"],
        hidden=traces["hidden"],
    )
