"""What a receiver counts: every line is accounted for. Never decides anything."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Counters:
    """Since the start. What is no hit is benign; a hit became facts or a duplicate, or its pattern
    excludes it."""

    lines: int = 0
    bytes: int = 0
    hits: int = 0
    duplicates: int = 0  # came by two paths
    repeats_unresolved: int = 0  # `last message repeated` whose message is not at hand
    unread: int = 0  # say that something failed, and no signature takes them
    unread_unexamined: int = 0  # too many at once to be looked at for that
    unread_left_out: int = 0  # of more forms and machines at once than are written down
    events: int = 0  # spooled, after folding
    occurrences: int = 0  # the sum of their counts
    cut_lines: int = 0  # longer than 64 KiB
    framing_errors: int = 0  # connections closed for a wrong octet count or RELP frame
    acknowledged_lines: int = 0  # by RELP
    connections: int = 0
    refused_connections: int = 0  # from outside the accepted networks, or over the limit
    refused_handshakes: int = 0  # of TLS: without a certificate that we take
    refused_datagrams: int = 0
    crowded_datagrams: int = 0  # of senders that sent more than their share could be looked at
    refused_names: int = 0  # events of machines that no inventory knows, over the quota
    refused_events: int = 0  # over the quota of their sender
    lost_datagrams: int = 0  # dropped by the kernel before they could be read
    batches: int = 0
    deliveries_failed: int = 0  # the inbox did not take batches; they are delivered later
    spool_failures: int = 0  # the disk did not take a batch; kept in memory, senders held back

    traps: int = 0  # datagrams with SNMP notifications, whatever became of them
    refused_traps: int = 0  # from outside the accepted networks
    unbelieved_traps: int = 0  # by a community, user or key that is not known here
    malformed_traps: int = 0
    unknown_traps: int = 0  # of no meaning here, or of a node
    lost_traps: int = 0  # more at once than could be taken

    def copy_counts(self) -> dict[str, int]:
        return asdict(self)
