"""The check that runs on a node: report-only, quick from its cache, and harmless when it is itself
at fault."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from detectors.cli import check
from detectors.transports import private_folder
from fixtures.cluster.gpu import Presence, SimulatedGpu, query_xml

GPUS = [
    SimulatedGpu(index, f"0000:{bus}:00.0", f"GPU-{index}", f"{index}")
    for index, bus in enumerate(("19", "3b"))
]
EXPECTED = {"gpus": [[str(gpu.index), gpu.pci] for gpu in GPUS]}


class Place:
    """A node in a folder: an nvidia-smi on PATH, the check's state, what is expected, a token."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.expected = folder / "expected.json"
        self.expected.write_text(json.dumps(EXPECTED))
        self.token = folder / "token"
        self.token.touch(mode=0o600)
        self.token.write_text("secret-token\n")
        self.shows()

    def shows(self, *lost: int, script: str = "") -> None:
        """nvidia-smi answers, with these GPUs missing; or runs a script of its own."""
        gpus = [
            SimulatedGpu(
                g.index,
                g.pci,
                g.uuid,
                g.serial,
                Presence.MISSING if g.index in lost else Presence.PRESENT,
            )
            for g in GPUS
        ]
        _, text = query_xml(gpus, datetime(2026, 11, 21, tzinfo=UTC))
        (self.folder / "answer.xml").write_text(text)
        program = self.folder / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script or 'cat ' + str(self.folder / 'answer.xml')}\n")
        program.chmod(0o755)

    def check(self, *words: str) -> tuple[int, str]:
        """Exit code and what was printed."""
        options = ["--detectors", "gpu", "--node", "gn001", "--state", str(self.folder / "state")]
        options += ["--expected", str(self.expected), "--token-file", str(self.token)]
        code = check.main([*options, *words])
        return code, self._capsys.readouterr().out

    def whole(self, *words: str) -> tuple[int, dict[str, Any]]:
        code, text = self.check("--json", *words)
        return code, json.loads(text)


@pytest.fixture(autouse=True)
def own_excepthook(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check sets it for its whole process; here it goes back after each test."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Place:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    # Locks of its own: another check on this machine, in another test, is not waited for.
    locks = tmp_path / "locks"
    locks.mkdir()
    monkeypatch.setattr(private_folder, "SHARED_MEMORY", str(locks))
    return Place(tmp_path, capsys)


def test_a_node_that_is_well_exits_0_with_one_line(place: Place) -> None:
    code, text = place.check()
    assert (code, text.count("\n")) == (0, 1)
    assert text.startswith("KINTSUGI OK - gn001: 1 detectors found no fault | time=")


def test_a_missing_gpu_is_critical_and_named(place: Place) -> None:
    place.shows(1)
    code, text = place.check()
    assert code == check.CRITICAL
    assert "gpu.lost on node/gn001/gpu/0000:3b:00.0" in text


def test_slow_detectors_are_asked_when_they_are_named(place: Place) -> None:
    _, quick = place.whole("--detectors", "")
    _, all_of_them = place.whole("--detectors", "all")
    names = [set(whole["line"].split("|")[1].split()) for whole in (quick, all_of_them)]
    asked = [{word.split("=")[0] for word in words} for words in names]
    assert "gpu" in asked[0]
    assert {"bmc", "disks", "transceiver"} <= asked[1] - asked[0]


def test_a_fault_that_was_mended_is_gone_in_the_next_check(place: Place) -> None:
    place.shows(1)
    place.check()
    place.shows()
    assert place.check()[0] == check.OK


def test_an_answer_that_cannot_be_read_is_unknown_and_never_well(place: Place) -> None:
    place.shows(script="echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    code, whole = place.whole()
    assert code != check.OK
    assert whole["faults"]


def test_a_program_that_hangs_is_cut_off_at_the_time_limit(place: Place) -> None:
    place.shows(script="exec sleep 60")
    code, whole = place.whole("--timeout", "0.5")
    assert code in (check.CRITICAL, check.UNKNOWN)
    assert whole["took_s"] < 10


def test_the_prolog_lets_the_job_start_whatever_is_found(place: Place) -> None:
    place.shows(1)
    assert place.check("--prolog")[0] == 0


@pytest.mark.parametrize(
    "words", [["--detectors", "no_such"], ["--expected", "/nonexistent"], ["--no-such-option"]]
)
def test_a_check_that_cannot_be_made_is_unknown_says_why_and_stops_no_job(
    place: Place, words: list[str]
) -> None:
    code, text = place.check(*words)
    assert code == check.UNKNOWN
    assert "the check itself failed" in text
    assert place.check("--prolog", *words)[0] == 0


def test_a_young_answer_comes_from_the_cache(place: Place) -> None:
    place.check()
    place.shows(1)
    assert place.check("--max-age", "300")[0] == check.OK
    assert place.check()[0] == check.CRITICAL


@pytest.mark.parametrize("spoil", ["writable", "broken", "old", "other boot"])
def test_a_cache_that_cannot_be_trusted_is_not_used(place: Place, spoil: str) -> None:
    place.check()
    place.shows(1)
    result = place.folder / "state" / "result.json"
    values = json.loads(result.read_text())
    if spoil == "writable":
        result.chmod(0o666)
    elif spoil == "broken":
        result.write_text(result.read_text()[:50])
    else:
        values.update(
            {"old": {"taken_at_s": values["taken_at_s"] - 301}, "other boot": {"boot_id": "x"}}[
                spoil
            ]
        )
        result.write_text(json.dumps(values))
    assert place.check("--max-age", "300")[0] == check.CRITICAL


def test_a_memory_that_cannot_be_read_is_said_and_replaced(place: Place) -> None:
    place.check()
    (place.folder / "state" / "memory.json").write_text("{")
    assert "counters start anew" in place.check()[1]
    assert "counters start anew" not in place.check()[1]


def test_a_state_that_cannot_be_written_is_said(place: Place) -> None:
    (place.folder / "state").write_text("a file where a folder should be")
    code, text = place.check()
    assert code == check.OK
    assert "cannot be" in text


class Server:
    """Kintsugi's side: keeps what it is sent and answers with what the test wants."""

    def __init__(self, status: int, answer: dict[str, Any]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.tokens: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.bodies.append(
                    json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                )
                outer.tokens.append(self.headers["Authorization"])
                self.send_response(status)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}
        )

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def granting() -> Iterator[Server]:
    with Server(200, {"is_granted": True, "reason": "gpu.lost on gn001"}) as server:
        yield server


@pytest.fixture
def refusing() -> Iterator[Server]:
    with Server(200, {"is_granted": False, "reason": "the stop switch is engaged"}) as server:
        yield server


def test_what_was_seen_is_sent_with_the_nodes_token(place: Place, granting: Server) -> None:
    code, text = place.check("--post", granting.url)
    assert (code, "not reported" in text) == (0, False)
    body = granting.bodies[0]
    assert (body["version"], body["node"]) == (1, "gn001")
    metrics = {o["metric"] for reading in body["readings"] for o in reading["observations"]}
    assert {"gpu.present", "target.reachable"} <= metrics
    assert granting.tokens == ["Bearer secret-token"]


@pytest.mark.parametrize("status", [302, 401, 500])
def test_a_server_that_takes_nothing_is_said_and_changes_no_exit_code(
    place: Place, status: int
) -> None:
    with Server(status, {"error": "no"}) as server:
        code, text = place.check("--post", server.url)
    assert code == check.OK
    assert f"not reported: {server.url} answered {status}" in text


def test_a_token_that_others_can_read_is_not_used(place: Place, granting: Server) -> None:
    place.token.chmod(0o644)
    assert "chmod 600" in place.check("--post", granting.url)[1]
    assert granting.bodies == []


def test_a_missing_gpu_stops_the_job_when_the_server_grants_it(
    place: Place, granting: Server
) -> None:
    place.shows(1)
    code, text = place.check("--prolog", "--block", granting.url)
    assert code == 1
    assert "the job is stopped: gpu.lost on gn001" in text
    assert granting.bodies[0]["faults"][0]["fault_type"] == "gpu.lost"


def test_the_job_starts_when_the_server_refuses(place: Place, refusing: Server) -> None:
    place.shows(1)
    code, text = place.check("--prolog", "--block", refusing.url)
    assert code == 0
    assert "the job may start: the stop switch is engaged" in text


def test_the_job_starts_when_no_server_answers(place: Place) -> None:
    place.shows(1)
    code, text = place.check("--prolog", "--block", "http://127.0.0.1:9/")
    assert code == 0
    assert "could not be asked" in text


def test_no_leave_is_asked_for_a_fault_that_may_not_stop_a_job(
    place: Place, granting: Server
) -> None:
    place.shows(script="echo broken")
    assert place.check("--prolog", "--block", granting.url)[0] == 0
    assert granting.bodies == []
