"""Many small files of a node (sysfs, procfs, configfs) in one command, and what came back. No
shell, no glob.

Python 3.9, standard library alone.
"""

from __future__ import annotations

from datetime import timedelta

from detectors.detector import Command, Output


def build_read_command(
    name: str, root: str, *paths: str, depth: int = 6, as_root: bool = False
) -> Command:
    """Prints every readable file below `root` whose whole path fits one of `paths` (find's -path: *
    crosses /).

    Symbolic links are followed down to `depth`, as sysfs is made of them. A file that is gone or
    cannot be read is left out, so absence says nothing by itself.
    """
    wanted: list[str] = []
    for path in paths:
        wanted += ["-o", "-path", path] if wanted else ["-path", path]
    argv = ("find", "-L", root, "-maxdepth", str(depth), "(", *wanted, ")", "-type", "f")
    argv = (*argv, "-exec", "grep", "-sHZ", "", "{}", "+")
    return Command(name, argv, timeout=timedelta(seconds=10), as_root=as_root)


def parse_contents(output: Output) -> dict[str, str]:
    """Path to text, without the last line end. Lines that are none of grep's are passed over."""
    lines: dict[str, list[str]] = {}
    for line in output.stdout.decode("utf-8", "replace").splitlines():
        path, nul, text = line.partition("\0")  # a colon would not do: PCI addresses stand in paths
        if nul and path.startswith("/"):
            lines.setdefault(path, []).append(text)
    return {path: "\n".join(texts) for path, texts in lines.items()}
