"""How two faults can be related by where they are: each relation gives keys, and two faults meet where keys meet. Pure.

A relation never says which fault is the cause: rules do (`incidents.correlation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from incidents.graph import Graph
from incidents.views import FaultView


class Side(StrEnum):
    """A switch is a cause for the links of its ports, not one of them: keys differ by side."""

    CAUSE = "cause"
    EFFECT = "effect"


class Relation(StrEnum):
    SAME_PART = "same_part"
    SAME_GPU = "same_gpu"
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
    MANAGEMENT_SWITCH = "management_switch"
    MANAGEMENT_NETWORK = "management_network"
    SAME_JOB = "same_job"
    SAME_MAINTENANCE = "same_maintenance"


@dataclass(frozen=True)
class Surroundings:
    """What relations look at besides the fault. Jobs are resource paths; both maps hold only what the batch needs."""

    graph: Graph = field(default_factory=Graph)
    jobs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Machine (`node/gn001`) to the jobs that ran there around the batch's time."""
    machines: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Job to its machines."""
    windows: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Machine to the maintenance windows in force there."""


def keys(relation: Relation, side: Side, fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Where the fault can meet others by this relation; empty: nowhere. Two faults meet where their keys do."""
    raise NotImplementedError


def owners(relation: Relation, side: Side, fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The machines on which faults of the OTHER side may be found: what must be read from the database."""
    raise NotImplementedError
