"""`kintsugi spare`: what it takes into the pool, gives back, prints and refuses."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command

from incidents.models import Spare
from incidents.reserve import spares
from kintsugi.clients import wiring
from runbooks import spare_swaps
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site(nodes=3)
    monkeypatch.setattr(wiring, "build_world", lambda: site.world)
    return site


def done(*words: str) -> str:
    out = io.StringIO()
    call_command("spare", *words, stdout=out)
    return out.getvalue()


def refused(*words: str) -> str:
    with pytest.raises(CommandError) as caught:
        done(*words)
    return str(caught.value)


@pytest.mark.parametrize("how", [(), ("--reserved",)])
def test_a_node_enters_the_pool_and_is_kept_free(site: Site, how: tuple[str, ...]) -> None:
    assert "gn003 is a spare for gpu" in done("add", "gn003", "--partition", "gpu", *how)
    assert not spare_swaps.is_in(Spare.objects.get(), site.slurm)
    assert done("list").startswith("gn003  ready since")
    done("remove", "gn003")
    assert done("list") == "None.\n"


def test_one_that_stands_in_is_given_back(site: Site) -> None:
    done("add", "gn003", "--partition", "gpu")
    spare = Spare.objects.get()
    spares.claim(spare, stands_for="gn001", incident_id=0, now=site.now)
    spare.refresh_from_db()
    spare_swaps.bring_in(spare, site.slurm, site.now)
    assert "gn003  serving for gn001" in done("list")
    assert "one that stands in is given back first" in refused("remove", "gn003")
    assert "gn003 is a spare again" in done("return", "gn003")
    assert not spare_swaps.is_in(spare, site.slurm)
    assert refused("return", "gn003") == "gn003 stands in for nobody."


def test_what_cannot_be_a_spare_is_refused_and_nothing_is_kept(site: Site) -> None:
    assert refused("add", "gn9", "--partition", "gpu") == "The inventory knows no node gn9."
    assert "Slurm knows no such partition" in refused("add", "gn003", "--partition", "cpu")
    assert "Name the partitions" in refused("add", "gn003")
    site.slurm.is_answering = False
    refused("add", "gn003", "--partition", "gpu")
    assert not Spare.objects.exists()
