"""How two faults can be near each other, and which side of it is the cause. Pure."""

from __future__ import annotations

from enum import StrEnum


class Side(StrEnum):
    """A switch is a cause for the links of its ports, not one of them: keys differ by side."""

    CAUSE = "cause"
    EFFECT = "effect"


class Relation(StrEnum):
    SAME_PART = "same_part"
    SAME_GPU = "same_gpu"
    UNNAMED_GPU = "unnamed_gpu"
    SAME_MACHINE = "same_machine"
    NVSWITCH_FABRIC = "nvswitch_fabric"
    CABLE = "cable"
    MODULE = "module"
    SHARED_MACHINE = "shared_machine"
    PORT_OF_SWITCH = "port_of_switch"
    NEIGHBOUR_OF_SWITCH = "neighbour_of_switch"
    LEAF_OF_RAIL = "leaf_of_rail"
    SPINE_OF_LEAFS = "spine_of_leafs"
    STORAGE_PATH = "storage_path"
    RACK = "rack"
    POWER_FEED = "power_feed"
    COOLING = "cooling"
    POD = "pod"
    ALL_OF_SITE = "all_of_site"
    SWITCHES_OF_SITE = "switches_of_site"
    MANAGEMENT_SWITCH = "management_switch"
    MANAGEMENT_NETWORK = "management_network"
    PAUSE_PATH = "pause_path"
    SAME_JOB = "same_job"
    SAME_MAINTENANCE = "same_maintenance"
