"""`kintsugi inventory expected NODE`: what the check on that node is given."""

from __future__ import annotations

import json

import pytest
from django.core.management import CommandError, call_command

from detectors import expected
from incidents.models import Gpu, Node

pytestmark = pytest.mark.django_db


def test_what_is_expected_of_a_node_can_be_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    node = Node.objects.create(name="gn001", role="compute", address="10.0.0.1")
    Gpu.objects.create(node=node, index=0, pci_address="0000:19:00.0")
    call_command("inventory", "expected", "gn001")
    found = expected.from_json(json.loads(capsys.readouterr().out))
    assert (found.gpus, found.addresses) == ((("0", "0000:19:00.0"),), ("10.0.0.1",))


def test_a_node_that_is_not_in_the_inventory_is_refused() -> None:
    with pytest.raises(CommandError, match="not in the inventory"):
        call_command("inventory", "expected", "gn404")
