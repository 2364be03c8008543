"""Parts by another name: whatever a line or a poll calls them, one part is one resource."""

from __future__ import annotations

import pytest

from incidents import services
from incidents.models import Fault, Gpu
from tests.builders import NOW, a_node, an_event

pytestmark = pytest.mark.django_db
PCI = "0000:9b:00.0"


@pytest.mark.parametrize(
    "name", ["gpu/index:4", "gpu/4", "gpu/GPU-abc", "gpu/1650001", f"pci/{PCI}", f"gpu/{PCI}"]
)
def test_a_gpu_is_one_resource_by_all_of_its_names(name: str) -> None:
    node = a_node("gn007")
    Gpu.objects.filter(node=node).delete()
    Gpu.objects.create(node=node, index=4, pci_address=PCI, uuid="GPU-abc", serial="1650001")
    services.ingest([an_event("pcie.link_degraded", f"node/gn007/{name}")], now=NOW)
    assert Fault.objects.get().resource == f"node/gn007/gpu/{PCI}"


def test_another_pci_device_keeps_its_path() -> None:
    a_node("gn007")
    services.ingest([an_event("pcie.link_degraded", "node/gn007/pci/0000:01:00.0")], now=NOW)
    assert Fault.objects.get().resource == "node/gn007/pci/0000:01:00.0"
