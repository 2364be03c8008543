"""Follows pause frames upstream: from each port that stands still to the card that pauses and is
paused by none. Pure.

A port that stands still was paused by what is at the far end of its cable. A switch that pauses
does so because one of its own ports stands still; a card that pauses is the source.
"""

from __future__ import annotations

from collections.abc import Collection

from detectors import resources
from incidents.topology.graph import Graph

# Of switches (ports that stand still), and of cards (that say themselves that they pause).
STORM, CARD_STORM = "switch.pfc_storm", "nic.pfc.storm"
SOURCE = "nic.pfc.source"


def find_sources(still: Collection[str], graph: Graph) -> dict[str, frozenset[str]]:
    """By card: the ports of `still` that stand because of it. A port whose trail ends at a switch
    names no card."""
    by_switch: dict[str, list[str]] = {}
    for port in still:
        by_switch.setdefault(resources.owner(port), []).append(port)
    ports_by_card: dict[str, set[str]] = {}
    for port in still:
        for card in _follow_trails(port, by_switch, graph):
            ports_by_card.setdefault(card, set()).add(port)
    return {card: frozenset(ports) for card, ports in ports_by_card.items()}


def _follow_trails(port: str, by_switch: dict[str, list[str]], graph: Graph) -> set[str]:
    """The cards at the ends of all trails from this port. A ring of switches is walked once."""
    cards, walked, ahead = set(), set(), [port]
    while ahead:
        current = ahead.pop()
        far = graph.find_peer(current)
        if current in walked or far is None:
            continue
        walked.add(current)
        if "/nic/" in far:
            cards.add(far)
        # the switch there pauses because ports of its own stand still, but not the one that it
        # pauses us on
        else:
            ahead += [other for other in by_switch.get(resources.owner(far), ()) if other != far]
    return cards
