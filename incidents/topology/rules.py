"""Rows of an inventory file that stand for many cables, modules or ports, spelt out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from detectors import resources
from incidents.topology.rows import Row
from incidents.topology.topology import ModulePlace, PortPlace


def build_cables(row: Row) -> Iterable[tuple[str, str]]:
    """The cables of one row: both ends, a rule for nodes, or a rule for two layers of switches."""
    if "a" in row.values:
        ends = [(row.read_text("a"), row.read_text("b"))]
    elif "nodes" in row.values:
        ends = list(_list_node_cables(row))
    else:
        ends = list(_list_layer_cables(row))
    row.require_all_read()
    return ends


def _list_node_cables(row: Row) -> Iterator[tuple[str, str]]:
    """NIC number r of node number k goes to switch number r, port number k."""
    nodes, switches = row.read_hosts("nodes"), row.read_hosts("switches")
    nics, port = row.read_words("nics"), row.read_port_names("ports")
    if len(nics) != len(switches):
        row.fail(f"{len(nics)} nics for {len(switches)} switches: each NIC goes to one switch")
    for number, node in enumerate(nodes):
        for nic, switch in zip(nics, switches, strict=True):
            yield resources.nic(node, nic), resources.port(switch, port(number))


def _list_layer_cables(row: Row) -> Iterator[tuple[str, str]]:
    """Every lower switch has `links` cables to every upper one; ports count on across the other
    layer."""
    lower = row.read_hosts("lower")
    upper = row.read_hosts("upper")
    links = row.read_repeats("links")
    lower_port, upper_port = row.read_port_names("lower_ports"), row.read_port_names("upper_ports")
    for low, below in enumerate(lower):
        for high, above in enumerate(upper):
            for link in range(links):
                lower_end = resources.port(below, lower_port(high * links + link))
                upper_end = resources.port(above, upper_port(low * links + link))
                yield lower_end, upper_end


def build_modules(row: Row) -> list[ModulePlace]:
    """`count` modules in each switch, each with `ports_each` ports; ports count on from module to
    module."""
    switches, count = row.read_hosts("switches"), row.read_repeats("count")
    ports_each = row.read_repeats("ports_each")
    name, port = row.read_port_names("names"), row.read_port_names("ports")
    kind = row.read_text("kind", "")
    lanes = row.read_number("lanes", 8)
    if not ports_each or lanes % ports_each:
        row.fail(f"{lanes} lanes are not shared evenly by {ports_each} ports")
    row.require_all_read()
    places = []
    for switch in switches:
        for number in range(count):
            first = number * ports_each
            port_names = tuple(map(port, range(first, first + ports_each)))
            places.append(ModulePlace(switch, name(number), port_names, kind, lanes))
    return places


def build_ports(row: Row) -> list[PortPlace]:
    """What is declared of `count` ports of each switch, or of the named one."""
    switches = row.read_hosts("switches")
    if "name" in row.values:
        names = [row.read_text("name")]
    else:
        port, count = row.read_port_names("names"), row.read_repeats("count")
        names = [port(number) for number in range(count)]
    speed_gbps = row.read_number_or_none("speed_gbps")
    mtu = row.read_number_or_none("mtu")
    fec = row.read_text("fec", "")
    is_autonegotiated = row.read_flag_or_none("is_autonegotiated")
    is_admin_up = row.read_flag_or_none("is_admin_up")
    row.require_all_read()
    declared = PortPlace(
        switch="",
        name="",
        speed_gbps=speed_gbps,
        mtu=mtu,
        fec=fec,
        is_autonegotiated=is_autonegotiated,
        is_admin_up=is_admin_up,
    )
    return [replace(declared, switch=switch, name=name) for switch in switches for name in names]
