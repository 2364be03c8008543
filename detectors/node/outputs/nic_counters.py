"""Counters of network cards: which are watched, how several are summed, and what moves how fast.
Pure.

What each means:
https://docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/counters.html (`ethtool
-S`),
https://enterprise-support.nvidia.com/s/article/understanding-mlx5-linux-counters-and-status-parameters
(RDMA's). Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from detectors.detector import Samples
from detectors.faults import Observation

# Of several counters of link losses the first there is speaks, so that one loss is not counted
# twice.
_LINK_DOWNS = ("link_down_events_phy", "carrier_down_count")
# Summed, since one cause moves several of them.
_ETHERNET_SUMS = {
    "nic.lost": ("rx_pcs_symbol_err_phy", "rx_symbol_err_phy", "rx_crc_errors_phy"),
}
_SUMS = {
    "nic.module_errors": ("module_bus_stuck", "module_high_temp", "module_bad_shorted"),
    "nic.pci_errors": ("rx_pci_signal_integrity", "tx_pci_signal_integrity"),
}
_IB_SUMS = {
    "nic.ib.lost": ("symbol_error", "port_rcv_errors"),
    "nic.ib.out_of_spec": ("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
    "nic.ib.link_error_recovery": ("link_error_recovery",),
}
# Those that a rule of the catalogue looks at: told even while they are 0, which is their baseline.
_RULED = (
    *("tx_pause_storm_error_events", "tx_pause_storm_warning_events"),
    *("roce_slow_restart", "local_ack_timeout_err", "rx_discards_phy", "fec_uncorrectable_blocks"),
)
# Recorded as they are: no vendor says how many are too many, and flowlet balancing reorders packets
# by design.
_RECORDED = (
    *(
        "rx_corrected_bits_phy",
        "rx_bits_phy",
        "rx_out_of_buffer",
        "port_xmit_discards",
        "fec_corrected_blocks",
    ),
    *("out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "rnr_nak_retry_err"),
    *("roce_adp_retrans", "roce_adp_retrans_to"),
    *("np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled", "rp_cnp_ignored"),
    *("outbound_pci_stalled_rd_events", "outbound_pci_stalled_wr_events"),
)
_PFC = tuple(
    f"{way}_prio{number}_{what}"
    for way in ("rx", "tx")
    for number in range(8)
    for what in ("pause", "pause_duration")
)
CARRIER_FILES = frozenset({"carrier_down_count"})
LOST = frozenset({"nic.lost", "nic.ib.lost"})
RATES = LOST | frozenset(f"nic.{name}" for name in (*_RULED, *_RECORDED, *_PFC))
"""Metrics whose speed is told too, as `<metric>_per_s`."""


def list_counters(
    values: Mapping[str, int], *, is_infiniband: bool
) -> Iterator[tuple[str, int, str]]:
    """Metric, value and the words for it. A counter that is not there says nothing; a recorded one
    of 0 neither."""
    if is_infiniband and "link_downed" in values:
        yield "nic.ib.link_downed", values["link_downed"], f"link_downed {values['link_downed']}"
    for name in () if is_infiniband else _LINK_DOWNS:
        if name in values:
            yield f"nic.{name}", values[name], f"the link has gone down: {name} {values[name]}"
            break
    for metric, names in {**_SUMS, **(_IB_SUMS if is_infiniband else _ETHERNET_SUMS)}.items():
        there = {name: values[name] for name in names if name in values}
        if there:
            parts = (
                ", ".join(f"{name} {value}" for name, value in there.items() if value) or "all 0"
            )
            yield metric, sum(there.values()), parts
    for name in (*_RULED, *_RECORDED, *_PFC):
        if values.get(name) or (name in _RULED and name in values):
            yield f"nic.{name}", values[name], f"{name} {values[name]}"


def compute_rates(now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
    """Growth a second since the last round: of losses always, of the rest where there is any;
    nothing after a reset.

    A pause's duration is in microseconds: its rate over a million is the share of time that the
    port stood still.
    """
    for seen in now:
        last = before.get((seen.resource, seen.metric)) if seen.metric in RATES else None
        if (
            last is None
            or not isinstance(seen.value, int)
            or not isinstance(last.value, (int, float))
        ):
            continue
        passed_s = (seen.observed_at - last.at).total_seconds()
        grown = seen.value - last.value
        if passed_s <= 0 or grown < 0 or (grown == 0 and seen.metric not in LOST):
            continue
        kept = {name: value for name, value in seen.attributes.items() if name != "text"}
        yield Observation(
            seen.resource,
            f"{seen.metric}_per_s",
            round(grown / passed_s, 3),
            seen.observed_at,
            kept,
        )


def compute_bit_error_rates(speeds: Sequence[Observation]) -> Iterator[Observation]:
    """`nic.raw_ber` of what `rates` tells: corrected bits by the bits that could have come in the
    same time."""
    corrected = {o.resource: o for o in speeds if o.metric == "nic.rx_corrected_bits_phy_per_s"}
    for seen in speeds:
        if seen.metric == "nic.rx_bits_phy_per_s" and seen.value > 0:
            errors = corrected.get(seen.resource)
            ber = errors.value / seen.value if errors is not None else 0.0
            attributes = {
                **seen.attributes,
                "qualifier": "by counters",
                "text": f"{ber:.1e} before correction",
            }
            yield Observation(
                seen.resource, "nic.raw_ber", float(f"{ber:.3g}"), seen.observed_at, attributes
            )
