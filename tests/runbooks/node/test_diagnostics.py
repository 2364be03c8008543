"""What the output of a test says of a node: total on any text, and never "passed" without a test
that passed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbooks.node import diagnostics
from runbooks.node.detached_command import Ended
from runbooks.node.diagnostics import Diagnosis, DiagnosticOutcome, Wanted
from tests.services.patience import patient

DCGM, NCCL = Wanted(Diagnosis.DCGM), Wanted(Diagnosis.NCCL)
CARDS = Wanted(Diagnosis.RDMA, devices=("mlx5_0", "mlx5_1"))
TABLE = """Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Deployment  --------+------------------------------------------------|
| NVML Library              | Pass                                           |
| Persistence Mode          | {persistence:<46} |
|-----  Hardware  ----------+------------------------------------------------|
| GPU Memory                | {memory:<46} |
+---------------------------+------------------------------------------------+
"""


def a_report(
    *results: dict[str, Any], test: str = "memory", root: str = "DCGM Diagnostic", **more: Any
) -> str:
    tests = [{"name": test, "results": list(results)}]
    passed = {
        "name": "software",
        "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Pass"}],
    }
    return json.dumps(
        {root: {"test_categories": [{"category": "Hardware", "tests": [passed, *tests]}], **more}}
    )


@pytest.mark.parametrize("root", ["DCGM GPU Diagnostic", "DCGM Diagnostic"])
def test_report_of_either_generation_is_read(root: str) -> None:
    well = Ended(0, a_report({"status": "Pass"}, root=root))
    assert diagnostics.evaluate(DCGM, well).outcome is DiagnosticOutcome.PASSED
    ill = diagnostics.evaluate(
        DCGM, Ended(226, a_report({"gpu_ids": "3", "status": "Fail"}, root=root))
    )
    assert (ill.outcome, ill.text) == (DiagnosticOutcome.ILL, "failed: memory on GPU 3")


def test_failing_test_is_named_with_its_gpu_and_its_words() -> None:
    row = {
        "entity_group": "GPU",
        "entity_id": 5,
        "status": "Fail",
        "warnings": [{"error_id": 4, "error_severity": 2, "warning": "A DBE occurred."}],
    }
    verdict = diagnostics.evaluate(DCGM, Ended(205, "noise\n" + a_report(row) + "\n"))
    assert verdict.text == "failed: memory on GPU 5 (DCGM 4: A DBE occurred.)"


@pytest.mark.parametrize(
    ("codes", "outcome"),
    [
        ([4], DiagnosticOutcome.ILL),  # an uncorrectable memory error
        ([30], DiagnosticOutcome.ILL),  # to be triaged: too slow
        ([27, 4], DiagnosticOutcome.ILL),
        ([999], DiagnosticOutcome.ILL),  # a newer DCGM's
        ([27], DiagnosticOutcome.UNKNOWN),  # a field could not be read
        ([47], DiagnosticOutcome.UNKNOWN),  # a person stopped it
        ([117, 28], DiagnosticOutcome.UNKNOWN),
        (["4", True, None, [4], 0, -4], DiagnosticOutcome.ILL),  # no code at all: the test failed
    ],
)
def test_what_says_nothing_against_hardware_condemns_none(
    codes: list[Any], outcome: DiagnosticOutcome
) -> None:
    warnings = [{"error_id": code, "warning": "Some words."} for code in codes]
    report = a_report({"entity_id": 2, "status": "Fail", "warnings": warnings})
    assert diagnostics.evaluate(DCGM, Ended(226, report)).outcome is outcome


@pytest.mark.parametrize(
    ("test", "warnings"),
    [
        ("Persistence Mode", []),
        (
            "software",
            [
                {
                    "error_category": 8,
                    "error_id": 29,
                    "error_severity": 5,
                    "warning": "Persistence Mode: ...",
                }
            ],
        ),
    ],
)
def test_wrong_setting_is_no_illness(test: str, warnings: list[Any]) -> None:
    report = a_report({"entity_id": 0, "status": "Fail", "warnings": warnings}, test=test)
    verdict = diagnostics.evaluate(DCGM, Ended(226, report))
    assert verdict.outcome is DiagnosticOutcome.UNKNOWN
    assert "setting" in verdict.text


def test_warning_passes_and_is_told() -> None:
    verdict = diagnostics.evaluate(
        DCGM, Ended(0, a_report({"gpu_ids": "1", "status": "Warn"}, test="PCIe"))
    )
    assert verdict.outcome is DiagnosticOutcome.PASSED
    assert "PCIe on GPU 1" in verdict.text


@pytest.mark.parametrize(
    ("persistence", "memory", "status", "outcome"),
    [
        ("Pass", "Pass - All", 0, DiagnosticOutcome.PASSED),
        ("Pass", "Fail - GPU: 3", 226, DiagnosticOutcome.ILL),
        ("Fail", "Skip - All", 226, DiagnosticOutcome.UNKNOWN),
    ],
)
def test_table_is_read_where_there_is_no_report(
    persistence: str, memory: str, status: int, outcome: DiagnosticOutcome
) -> None:
    ended = Ended(status, TABLE.format(persistence=persistence, memory=memory))
    verdict = diagnostics.evaluate(DCGM, ended)
    assert verdict.outcome is outcome
    assert ("GPU Memory on GPU 3" in verdict.text) == (outcome is DiagnosticOutcome.ILL)


@pytest.mark.parametrize(
    "ended",
    [
        Ended(0, ""),
        Ended(0, "{}"),
        Ended(0, a_report({"status": "Skip"}).replace("Pass", "Skip")),
        Ended(212, "Error: unable to establish a connection to the specified host: localhost"),
        Ended(0, a_report(runtime_error="The hostengine went away")),
        Ended(127, "sh: 1: dcgmi: not found"),
        Ended(None, a_report({"status": "Pass"})),
    ],
)
def test_what_does_not_say_that_a_test_passed_has_not_passed(ended: Ended) -> None:
    assert diagnostics.evaluate(DCGM, ended).outcome is DiagnosticOutcome.UNKNOWN


SPEED = "#  8589934592 ...\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 448.212\n#\n"


@pytest.mark.parametrize(
    ("ended", "at_least", "outcome"),
    [
        (Ended(0, SPEED), None, DiagnosticOutcome.PASSED),
        (Ended(0, SPEED), 440.0, DiagnosticOutcome.PASSED),
        (Ended(0, SPEED), 450.0, DiagnosticOutcome.ILL),
        (Ended(1, SPEED.replace("0 OK", "12 FAILED")), None, DiagnosticOutcome.ILL),
        (
            Ended(1, "Test NCCL failure common.cu:1044 'unhandled system error'"),
            None,
            DiagnosticOutcome.ILL,
        ),
        (Ended(0, "nothing of a bandwidth"), None, DiagnosticOutcome.UNKNOWN),
        (Ended(127, "all_reduce_perf: not found"), None, DiagnosticOutcome.UNKNOWN),
        (Ended(None, SPEED), None, DiagnosticOutcome.UNKNOWN),
    ],
)
def test_nccl_passes_with_right_values_at_the_sites_speed(
    ended: Ended, at_least: float, outcome: DiagnosticOutcome
) -> None:
    assert diagnostics.evaluate(Wanted(Diagnosis.NCCL, at_least=at_least), ended).outcome is outcome


def written(speed: float) -> str:
    return (
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
        f" 65536      3731000          0.00               {speed:.2f}\t\t   0.746536\n"
    )


def test_card_that_writes_nothing_is_named() -> None:
    said = f"card mlx5_0\n{written(391.4)}card mlx5_1\n Unable to init the socket connection\n"
    verdict = diagnostics.evaluate(CARDS, Ended(1, said))
    assert verdict.outcome is DiagnosticOutcome.ILL
    assert verdict.text.startswith("failed on mlx5_1")


@pytest.mark.parametrize(
    ("at_least", "outcome"), [(None, DiagnosticOutcome.PASSED), (380.0, DiagnosticOutcome.ILL)]
)
def test_card_below_the_sites_speed_is_ill(
    at_least: float | None, outcome: DiagnosticOutcome
) -> None:
    said = f"card mlx5_0\n{written(391.4)}card mlx5_1\n{written(97.9)}"
    verdict = diagnostics.evaluate(
        Wanted(Diagnosis.RDMA, at_least=at_least, devices=CARDS.devices), Ended(0, said)
    )
    assert verdict.outcome is outcome
    assert ("mlx5_1: reached 97.9 Gb/s" in verdict.text) == (outcome is DiagnosticOutcome.ILL)


def test_cards_of_which_the_test_was_killed_are_not_called_ill() -> None:
    assert (
        diagnostics.evaluate(CARDS, Ended(None, f"card mlx5_0\n{written(391.4)}")).outcome
        is DiagnosticOutcome.UNKNOWN
    )


def a_round(number: int, *, nccl: str = SPEED) -> str:
    report = a_report({"status": "Pass"})
    return f"kintsugi round {number} dcgm\n{report}\nkintsugi round {number} nccl\n{nccl}"


def test_burn_in_is_judged_by_its_last_round() -> None:
    verdict = diagnostics.evaluate_burn_in(DCGM, Ended(0, a_round(1) + a_round(2)))
    assert (verdict.outcome, "round 2, nccl" in verdict.text) == (DiagnosticOutcome.PASSED, True)
    broken = f"{a_round(1)}kintsugi round 2 dcgm\n{a_report({'gpu_ids': '4', 'status': 'Fail'})}"
    verdict = diagnostics.evaluate_burn_in(DCGM, Ended(226, broken))
    assert verdict.outcome is DiagnosticOutcome.ILL
    assert "memory on GPU 4" in verdict.text


def test_burn_in_with_one_slow_round_has_not_held() -> None:
    said = a_round(1, nccl=SPEED.replace("448.212", "311.5")) + a_round(2)
    assert (
        diagnostics.evaluate_burn_in(Wanted(Diagnosis.DCGM, at_least=400.0), Ended(0, said)).outcome
        is DiagnosticOutcome.ILL
    )


@given(st.sampled_from([DCGM, NCCL, CARDS]), st.one_of(st.none(), st.integers(0, 255)), st.text())
def test_any_output_gets_a_verdict_and_none_passes_by_chance(
    wanted: Wanted, status: int | None, said: str
) -> None:
    verdict = diagnostics.evaluate(wanted, Ended(status, said))
    assert verdict.text
    if status != 0:
        assert verdict.outcome is not DiagnosticOutcome.PASSED
    diagnostics.evaluate_burn_in(wanted, Ended(status, said))


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=6)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "DCGM Diagnostic",
                    "test_categories",
                    "tests",
                    "results",
                    "status",
                    "warnings",
                    "name",
                ]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@given(_JSON)
def test_any_json_gets_a_verdict(document: Any) -> None:
    assert diagnostics.evaluate(DCGM, Ended(0, json.dumps(document))).text


# The scripts, by a real sh with stand-ins on PATH
# ---------------------------------------------------------------------------

PROGRAMS = {
    "dcgmi": """echo "dcgmi $*" >>{log}; echo '{report}'; exit $(cat {state}/status 2>/dev/null || echo 0)\n""",
    "all_reduce_perf": """echo "nccl $*" >>{log}; echo "# Avg bus bandwidth    : 448.2"\n""",
    "ib_write_bw": """case " $* " in *" localhost "*|*localhost)
  [ -f "{state}/$2" ] && {{ echo "Unable to connect"; exit 1; }}
  echo " 65536      3731000          0.00               391.40               0.746536" ;;
  *) echo "server $2" >>{log}; sleep 0.3 ;; esac\n""",
    "sleep": """exec /bin/sleep 0.05\n""",
}


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of stand-ins; `log` holds what was asked of them."""
    for name, text in PROGRAMS.items():
        path = tmp_path / name
        path.write_text(
            "#!/bin/sh\n" + text.format(log=tmp_path / "log", state=tmp_path, report=a_report())
        )
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def run(command: tuple[str, ...]) -> Ended:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patient(30))
    return Ended(done.returncode, done.stdout + done.stderr)


def test_each_card_is_server_and_client_of_itself(tools: Path) -> None:
    verdict = diagnostics.evaluate(CARDS, run(diagnostics.build_command(CARDS)))
    assert verdict.outcome is DiagnosticOutcome.PASSED
    assert (tools / "log").read_text() == "server mlx5_0\nserver mlx5_1\n"


def test_one_card_that_fails_does_not_keep_the_others_from_their_test(tools: Path) -> None:
    (tools / "mlx5_0").touch()
    verdict = diagnostics.evaluate(CARDS, run(diagnostics.build_command(CARDS)))
    assert verdict.outcome is DiagnosticOutcome.ILL
    assert "failed on mlx5_0" in verdict.text
    assert "mlx5_1" not in verdict.text


def test_burn_in_ends_with_its_round_once_the_time_is_over(tools: Path) -> None:
    ended = run(diagnostics.build_burn_in_command(0, level=3, gpus=8))
    assert diagnostics.evaluate_burn_in(DCGM, ended).outcome is DiagnosticOutcome.PASSED
    assert (tools / "log").read_text() == "dcgmi diag -r 3 -j\nnccl -b 1G -e 8G -f 2 -g 8\n"


def test_burn_in_stops_at_the_first_test_that_fails(tools: Path) -> None:
    (tools / "dcgmi").write_text((tools / "dcgmi").read_text().replace("|| echo 0", "|| echo 226"))
    ended = run(diagnostics.build_burn_in_command(3600, level=3, gpus=8))
    assert ended.status == 226
    assert "nccl" not in (tools / "log").read_text()
