"""Machines and their parts as people name them, by what the inventory knows. Reads only."""

from __future__ import annotations

from detectors import resources
from incidents.models import Gpu


def format_resource(resource: str) -> str:
    """A resource path as a person says it: `gn042 GPU 4 (0000:9b:00.0)`, `leaf-03 port
    Ethernet64`."""
    parts = resource.split("/", 3)
    machine = "unknown host"
    if len(parts) > 1 and parts[1] != resources.UNKNOWN_HOST:
        machine = parts[1]
    if len(parts) < 4:
        return machine if parts[0] != "switch" else f"switch {machine}"
    kind, name = parts[2], parts[3]
    if kind == "gpu":
        gpus = Gpu.objects.filter(node__name=machine, pci_address=name)
        index = gpus.values_list("index", flat=True).first()
        return f"{machine} GPU {name}" if index is None else f"{machine} GPU {index} ({name})"
    words = {"nic": "NIC", "nvswitch": "NVSwitch", "pci": "PCI device", "port": "port"}
    return f"{machine} {words.get(kind, kind)} {name}"
