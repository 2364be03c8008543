"""The cables of the inventory; `incidents.graphs` holds the whole site as wired. Reads only."""

from __future__ import annotations

from incidents import graphs
from incidents.topology import Topology


def current() -> Topology:
    return graphs.current().topology
