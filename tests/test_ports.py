"""Servers that tests start get ports that nothing else of the run takes."""

from __future__ import annotations

import itertools
import socket

from fixtures.cluster import slurm_daemons
from tests.services.ports import PORTS, free_port, is_free, list_own_ports


def test_no_two_workers_have_a_port_in_common() -> None:
    own = [set(list_own_ports(f"gw{number}")) for number in range(8)]
    assert all(own)
    assert not any(one & other for one, other in itertools.combinations(own, 2))


def test_no_server_is_given_a_port_that_a_private_slurm_may_take() -> None:
    """Each asks whether a port is free, and neither knows what the other's servers, still starting,
    will bind."""
    assert not set(PORTS) & set(slurm_daemons.PORTS)


def test_a_run_that_is_not_distributed_has_ports_too() -> None:
    assert list_own_ports("") == list_own_ports("gw0")


def test_a_port_is_not_given_again_while_its_server_is_still_starting() -> None:
    given = [free_port() for _ in range(500)]
    assert len(set(given)) == len(given)


def test_one_that_is_bound_already_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_free(server.getsockname()[1], socket.SOCK_STREAM)
