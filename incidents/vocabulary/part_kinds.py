"""Kinds of parts, and what a NIC is for. Pure."""

from __future__ import annotations

from enum import StrEnum


class NicRole(StrEnum):
    """What a NIC is for. A reserved one is not cabled, or not used: its being down is no fault."""

    FABRIC = "fabric"
    STORAGE = "storage"
    MANAGEMENT = "management"
    RESERVED = "reserved"


class Part(StrEnum):
    """Kinds of parts that are moved and replaced one by one."""

    NODE = "node"
    GPU = "gpu"
    NVSWITCH = "nvswitch"
    NIC = "nic"
    TRANSCEIVER = "transceiver"
    SWITCH = "switch"
