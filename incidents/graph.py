"""The site as wired: which machine hangs on which switch, module, rack, feed and storage path. Pure.

Built once per revision of the inventory; every question is a look into a dictionary, whatever the number of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from incidents.topology import Topology


@dataclass(frozen=True)
class Graph:
    """Answers about resource paths; what the inventory does not hold gives None or nothing."""

    topology: Topology = field(default_factory=Topology)

    def peer(self, resource: str) -> str | None:
        """The resource at the other end of this one's cable."""
        return self.topology.peer(resource)
