"""A site's Prometheus: whose series it is, what an answer in part means, and a real one before the
detector."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.detector import (
    DetectorError,
    Observation,
    Output,
    Reading,
    Target,
    TargetKind,
    Transports,
)
from detectors.expected import Expected
from detectors.metrics import prometheus, promql
from detectors.metrics.prometheus import PrometheusDetector
from detectors.slurm import job_stalled
from detectors.transports.http import HttpTransport
from fixtures.cluster.http import PROMETHEUS, PROMETHEUS_URL, served
from fixtures.cluster.transports import simulated_transports
from fixtures.cluster.world import SimulatedShell, SimulatedWorld
from tests.services.patience import deadline_in
from tests.services.ports import free_port
from tests.services.programs import find, spawn, stop

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
DETECTOR = PrometheusDetector()


def site(url: str = PROMETHEUS_URL, **settings: str) -> Target:
    return Target(
        "prometheus",
        "",
        kind=TargetKind.SITE,
        expected=Expected(urls={"prometheus": url}, settings=settings),
    )


def vector(*rows: tuple[dict[str, str], str], **more: object) -> str:
    result = [{"metric": labels, "value": [1795233600.0, value]} for labels, value in rows]
    return json.dumps(
        {"status": "success", "data": {"resultType": "vector", "result": result}, **more}
    )


def answered(body: str, status: int | None = 0) -> promql.QueryResult:
    return promql.answer(Output(status, body.encode(), b"", timedelta(0)))


@pytest.mark.parametrize(
    ("labels", "host"),
    [
        ({"instance": "gn001:9400"}, "gn001"),
        ({"instance": "gn001.cluster.example:9400"}, "gn001"),
        ({"instance": "gn001"}, "gn001"),
        ({"instance": "10.0.0.7:9100"}, "10.0.0.7"),
        ({"instance": "[fd00::7]:9100"}, "fd00::7"),
        ({"instance": "10.0.0.7:9400", "Hostname": "GN001"}, "gn001"),
        ({"instance": "10.0.0.7:9400", "hostname": "gn001"}, "gn001"),
        ({"instance": "10.0.0.7:9100", "nodename": "gn001"}, "gn001"),
        ({"job": "node"}, "-"),
    ],
)
def test_a_series_is_of_the_host_that_its_labels_name(labels: dict[str, str], host: str) -> None:
    assert promql.get_host(labels) == host


def test_a_site_may_name_the_label_itself() -> None:
    assert promql.get_host({"instance": "pod-17:9400", "machine": "gn001"}, "machine") == "gn001"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (
            '{"status":"error","errorType":"bad_data","error":"parse error"}',
            400,
            "bad_data: parse error",
        ),
        ("<html>502 Bad Gateway</html>", 502, "status 502"),
        ("", None, "time limit"),
        ("", 0, "no answer of a query API"),
        (
            '{"status":"success","data":{"resultType":"matrix","result":[]}}',
            0,
            "no answer of a query API",
        ),
        (
            '{"status":"success","data":{"resultType":"vector","result":[',
            0,
            "no answer of a query API",
        ),
        ("[]", 0, "no answer of a query API"),
    ],
)
def test_an_error_is_told_and_gives_no_series(body: str, status: int | None, words: str) -> None:
    found = answered(body, status)
    assert not found.is_usable
    assert found.series == ()
    assert words in found.complaints[0]


def test_an_answer_in_part_is_used_and_told() -> None:
    found = answered(vector(({"__name__": "up"}, "1"), warnings=["store-2 did not answer"]))
    assert len(found.series) == 1
    assert found.complaints == ("store-2 did not answer",)


def test_a_value_beyond_any_number_is_no_value() -> None:
    body = vector(({}, "1")).replace('"1"]', f"{'9' * 400}]")
    assert answered(body).complaints == ("1 of 1 series cannot be read",)


def test_series_that_cannot_be_read_are_counted() -> None:
    found = answered(vector(({"__name__": "up"}, "1"), ({"__name__": "up"}, "one")))
    assert len(found.series) == 1
    assert found.complaints == ("1 of 2 series cannot be read",)


def _tables(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.dictionaries(
        st.sampled_from(["metric", "value", "status", "warnings", "result"]), inner
    )


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=4) | _tables(inner),
        max_leaves=8,
    )
)
def test_any_json_is_an_answer(whole: object) -> None:
    for body in (
        whole,
        {"status": "success", "data": whole},
        {"data": {"resultType": "vector", "result": whole}},
    ):
        answered(json.dumps(body))


def test_a_query_travels_whole() -> None:
    asked: list[str] = []

    class Listening:
        def get(self, target: Target, url: str, timeout: timedelta) -> Output:
            asked.append(url)
            return Output(0, b"", b"", timedelta(0))

    world = SimulatedWorld.sakuraone()
    DETECTOR.collect(
        site("http://metrics:9090/prom/", prometheus_jobs='x"}|y\\d'),
        Transports(shell=SimulatedShell(world), http=Listening()),
        NOW,
    )
    parts = urlsplit(asked[0])
    assert (parts.hostname, parts.path) == ("metrics", "/prom/api/v1/query")
    assert parse_qs(parts.query)["query"] == ['up{job=~"x\\"}|y\\\\d"}']


def test_a_site_without_an_address_is_not_wanted_and_cannot_be_asked() -> None:
    bare = Target("prometheus", "", kind=TargetKind.SITE)
    assert not DETECTOR.wants(bare)
    with pytest.raises(DetectorError, match=r"urls\.prometheus"):
        DETECTOR.collect(bare, simulated_transports(SimulatedWorld.sakuraone()), NOW)


def test_gpus_of_an_exporter_that_is_gone_are_not_spoken_of() -> None:
    world = SimulatedWorld.sakuraone(clock=lambda: NOW)
    world.site.unexported.add("gn002")
    seen = list(DETECTOR.parse(DETECTOR.collect(site(), simulated_transports(world), NOW)))
    assert {
        o.resource.split("/")[1] for o in seen if "/gpu/" in o.resource
    } == world.site.scraped - {"gn002"}
    assert [o.resource for o in seen if o.metric == "prometheus.scraped" and o.value is False] == [
        "node/gn002"
    ]


def test_a_prometheus_that_scrapes_no_exporter_at_all_is_silent() -> None:
    world = SimulatedWorld.sakuraone(clock=lambda: NOW)
    world.site.unexported |= world.site.scraped
    seen = list(DETECTOR.parse(DETECTOR.collect(site(), simulated_transports(world), NOW)))
    [told] = [o for o in seen if o.metric == "detector.answered"]
    assert told.value is False
    assert "none of its 8 exporters" in told.attributes["text"]


def test_a_warning_makes_the_detector_silent_while_its_values_count() -> None:
    world = SimulatedWorld.sakuraone(clock=lambda: NOW)
    world.site.warnings.append("store-2 did not answer")
    seen = list(DETECTOR.parse(DETECTOR.collect(site(), simulated_transports(world), NOW)))
    assert [o.value for o in seen if o.metric == "detector.answered"] == [False]
    assert any("/gpu/" in o.resource for o in seen)


def test_the_simulated_prometheus_answers_over_real_http() -> None:
    world = SimulatedWorld.sakuraone(clock=lambda: NOW)
    with served(world, PROMETHEUS) as base:
        via = Transports(shell=SimulatedShell(world), http=HttpTransport())
        seen = list(DETECTOR.parse(DETECTOR.collect(site(base), via, NOW)))
        assert [o.value for o in seen if o.metric == "detector.answered"] == [True]
        refused = via.http.get(
            site(base), f"{base}/api/v1/query?query=vector(1)", timedelta(seconds=5)
        )
        assert refused.status == 400


@pytest.fixture
def real(tmp_path: Path) -> Iterator[str]:
    """A Prometheus that scrapes the simulated exporters of gn001 and gn002 each 0.2 s; gn003
    answers nothing."""
    world = SimulatedWorld.sakuraone(clock=lambda: NOW)
    world.node("gn001").gpu(3).is_remap_failed = True
    with served(world, "gn001") as first, served(world, "gn002") as second:
        targets = [urlsplit(first).netloc, urlsplit(second).netloc, f"127.0.0.1:{free_port()}"]
        groups = "".join(
            f"      - targets: ['{where}']\n        labels: {{nodename: gn00{number}}}\n"
            for number, where in enumerate(targets, 1)
        )
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
            f"scrape_configs:\n  - job_name: dcgm\n    static_configs:\n{groups}"
        )
        port = free_port()
        server = spawn(
            [
                find("prometheus") or "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'series'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=error",
            ]
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            stop(server)


@pytest.mark.needs("prometheus")
def test_a_real_prometheus_tells_of_the_exporters_that_it_scrapes(real: str) -> None:
    via = Transports(shell=SimulatedShell(SimulatedWorld.sakuraone()), http=HttpTransport())
    seen = _looked_until_scraped(real, via)
    told = {(o.resource, o.metric): o.value for o in seen}
    assert told["node/gn001/gpu/0000:5d:00.0", "gpu.ecc.remap_failure"] is True
    assert told["node/gn002/gpu/0000:5d:00.0", "gpu.ecc.remap_failure"] is False
    assert told["node/gn001", "prometheus.scraped"] is True
    assert told["node/gn003", "prometheus.scraped"] is False
    assert 0 <= float(str(told["node/gn001", "prometheus.sample_age_s"])) < 30
    for query in job_stalled.QUERIES.values():
        output = via.http.get(
            site(real), f"{real}/api/v1/query?{urlencode({'query': query})}", timedelta(seconds=5)
        )
        assert promql.answer(output).complaints == (), query
    wrong = via.http.get(site(real), f"{real}/api/v1/query?query=up%7B", timedelta(seconds=5))
    assert promql.answer(wrong).complaints[0].startswith("bad_data: ")


def _looked_until_scraped(url: str, via: Transports) -> list[Observation]:
    """It answers a moment before its first scrapes are in."""
    deadline = deadline_in(20)
    target = site(url, prometheus_host_label="nodename")
    while True:
        try:
            reading = DETECTOR.collect(target, via, datetime.now(UTC))
        except DetectorError:
            reading = Reading("prometheus", target, NOW, {})
        seen = list(DETECTOR.parse(reading))
        hosts = {o.resource for o in seen if o.metric == "prometheus.scraped"}
        if (
            len(hosts) == 3 and any("/gpu/" in o.resource for o in seen)
        ) or time.monotonic() > deadline:
            return seen
        time.sleep(0.1)


def test_only_fields_that_can_make_a_fault_are_asked_for() -> None:
    asked = prometheus.build_queries(site())["dcgm"]
    assert "DCGM_FI_DEV_ROW_REMAP_FAILURE" in asked
    assert "DCGM_FI_DEV_XID_ERRORS" not in asked
    assert "DCGM_FI_DEV_GPU_TEMP" not in asked
