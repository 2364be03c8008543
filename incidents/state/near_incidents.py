"""Open incidents near a batch as correlation looks at them, and no more: most of them stay as they
are. `incidents.state.neighbourhood` reads those whole that change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from detectors.catalog.catalog import Catalog
from incidents.faults.fault_views import FaultView, IncidentView, view_stored
from incidents.vocabulary.lifecycle import State


@dataclass(eq=False, slots=True)
class NearFault:
    """A fault of an open incident, by the columns that correlation asks for."""

    key: int
    fault_type: str
    owner: str
    resource: str
    component: str
    severity: str
    action: str
    raised_at: datetime
    observed_at: datetime
    is_active: bool
    forger: str
    catalog: Catalog = field(kw_only=True)
    _view: FaultView | None = None

    def view(self) -> FaultView:
        """Made when a rule looks at it: at most it never does."""
        if self._view is None:
            kind = self.catalog.get(self.fault_type)
            self._view = view_stored(
                self,
                opens_incident=kind is None or kind.opens_incident,
                is_sympathetic=kind is not None and kind.is_sympathetic,
            )
        return self._view


@dataclass(eq=False, slots=True)
class NearIncident:
    """An open incident with its faults, of which `root` is one."""

    key: int
    state: str
    has_platform_signal: bool
    is_fixed: bool
    is_told: bool
    opened_at: datetime
    root: NearFault
    members: Sequence[NearFault] = field(default_factory=list)
    _view: IncidentView | None = None

    def view(self) -> IncidentView:
        if self._view is None:
            self._view = IncidentView(
                key=self.key,
                state=State(self.state),
                root=self.root.view(),
                members=self.members,
                has_platform_signal=self.has_platform_signal,
                is_fixed=self.is_fixed,
                is_told=self.is_told,
                opened_at=self.opened_at,
                machines=frozenset(member.owner for member in self.members),
            )
        return self._view
