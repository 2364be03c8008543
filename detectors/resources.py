"""Resource paths in their one canonical form, and nothing about what is in the inventory.

    node/<short host>                      a node; node/-/... when the host is unknown
    node/<host>/gpu/<dddd:bb:dd.f>         its GPUs, by PCI address
    node/<host>/nvswitch/<dddd:bb:dd.f>    its NVSwitches
    node/<host>/nic/<device>               its NICs
    node/<host>/pci/<dddd:bb:dd.f>         any other PCI device of it
    node/<host>/storage/<device>           its drives and mounts
    switch/<name>                          a switch
    switch/<name>/port/<port>              its ports
    switch/<name>/module/<cage>            its transceivers
    storage/<name>                         a storage system
    rack/<name>, feed/<name>               where machines stand, and what powers their racks
    pod/<name>                             what has leafs of its own
    site/<name>                            what speaks for many machines
    site/<name>/job/<id>                   a job that Slurm runs on them

Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
from typing import Optional

UNKNOWN_HOST = "-"
_PCI = re.compile(
    r"^(?:PCI:)?(?:(?P<domain>[0-9a-f]{4,8}):)?"
    r"(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.(?P<function>[0-9a-f]))?$",
    re.IGNORECASE,
)


def pci_address(text: str) -> Optional[str]:
    """`PCI:0000:91:00`, `00000000:91:00.0` or `91:00.0` as `0000:91:00.0`; None when it is no PCI
    address.

    nvidia-smi prints eight domain digits, the kernel four; the function is left out in Xid lines.
    """
    found = _PCI.match(text.strip())
    if found is None:
        return None
    domain = (found["domain"] or "0000")[-4:].rjust(4, "0")
    function = found["function"] or "0"
    return f"{domain}:{found['bus']}:{found['device']}.{function}".lower()


def short_host(name: str) -> str:
    """`gn042.cluster.example` as `gn042`; an IP address stays whole; empty or `-` is the unknown
    host."""
    host = name.strip().lower()
    if not host or host == UNKNOWN_HOST:
        return UNKNOWN_HOST
    if ":" in host or re.fullmatch(r"\d{1,3}(\.\d{1,3}){3}", host):
        return host
    return host.split(".", 1)[0]


def printable(text: str) -> str:
    """On one line, without what a terminal would obey or no database takes: control characters,
    changes of the writing direction and lone surrogates show as replacement characters, a tab as a
    blank."""
    if text.isprintable():
        return text
    return "".join(_show(letter) for letter in text)


def _show(letter: str) -> str:
    if letter.isprintable():
        return letter
    return " " if letter == "\t" else "\N{REPLACEMENT CHARACTER}"


def node(host: str) -> str:
    return f"node/{short_host(host)}"


def gpu(host: str, pci: str) -> str:
    """The GPU by PCI address; anything else (`index:3`, a UUID) is kept as an alias that ingest
    resolves."""
    return f"{node(host)}/gpu/{pci_address(pci) or pci}"


def nvswitch(host: str, pci: str) -> str:
    return f"{node(host)}/nvswitch/{pci_address(pci) or pci}"


def pci_device(host: str, pci: str) -> str:
    """A PCI device of which nothing more is known, such as a bridge in an AER record."""
    return f"{node(host)}/pci/{pci_address(pci) or pci}"


def nic(host: str, device: str) -> str:
    return f"{node(host)}/nic/{device}"


def switch(name: str) -> str:
    return f"switch/{short_host(name)}"


def port(switch_name: str, port_name: str) -> str:
    return f"{switch(switch_name)}/port/{port_name}"


def module(switch_name: str, module_name: str) -> str:
    """A transceiver in a switch by its cage, as printed on the front; it may hold several ports."""
    return f"{switch(switch_name)}/module/{module_name}"


def job(site: str, job_id: str) -> str:
    """A job, by the site (Slurm) that runs it; not on any one node."""
    return f"site/{short_host(site)}/job/{job_id}"


def rack(name: str) -> str:
    return f"rack/{name}"


def feed(name: str) -> str:
    """A power feed, of one rack or of many."""
    return f"feed/{name}"


def pod(name: str) -> str:
    """A part of the network that has leaf switches of its own."""
    return f"pod/{name}"


def file_system(mount: str) -> str:
    """A file system that many machines share, by where they mount it: `/lustre` is
    `storage/lustre`."""
    return f"storage/{mount.strip('/').replace('/', '-') or 'root'}"


def owner(resource: str) -> str:
    """The whole machine that a part belongs to: `node/gn042/gpu/...` gives `node/gn042`."""
    return "/".join(resource.split("/", 2)[:2])


def host_of(resource: str) -> Optional[str]:
    """The node's short host name, or None for what is no node (or an unknown one)."""
    parts = resource.split("/", 2)
    if len(parts) < 2 or parts[0] != "node" or parts[1] == UNKNOWN_HOST:
        return None
    return parts[1]
