"""What a board's controller tells: words before statuses, new entries before old ones, and no
answer is no health."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.detector import OneByOne, Output, Reading, Target, Transports
from detectors.evaluation import judge
from detectors.expected import Expected
from detectors.faults import EventKind, Observation, fingerprint
from detectors.node.bmc import BmcDetector, sniff
from detectors.node.outputs import ipmitool, redfish
from detectors.node.outputs.bmc_alarms import MOST_ENTRIES
from detectors.transports.http import HttpTransport
from tests.services.ipmi import FAN, REDUNDANCY, SUPPLY, TEMPERATURE, IpmiShell, IpmiSim
from tests.services.patience import deadline_in
from tests.services.ports import wait_until
from tests.services.redfish import SushyEmulator

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
BMC = BmcDetector()
TARGET = Target("gn001", "127.0.0.1")


def told(text: str) -> dict[tuple[str, str], int]:
    """Worst level by kind and name, of a text of sensors."""
    found: dict[tuple[str, str], int] = {}
    for alarm in ipmitool.parse_alarms(text):
        key = (str(alarm.kind), alarm.name)
        found[key] = max(found.get(key, 0), alarm.level)
    return found


def output(text: str, status: int | None = 0) -> Output:
    return Output(status, text.encode(), b"", timedelta(0))


def taken(**texts: str) -> Reading:
    return Reading("bmc", TARGET, NOW, {name: output(text) for name, text in texts.items()})


class Rounds:
    """Round after round of one controller, as the poller keeps its memory and its standing
    faults."""

    def __init__(self) -> None:
        self.memory, self.active, self.at = judge.Memory(), set[str](), NOW

    def see(self, observations: Sequence[Observation]) -> list[tuple[str, str, str]]:
        judged = judge.judge_round(
            BMC, observations, self.memory, active=self.active, catalog=catalog.load()
        )
        self.memory = judged.memory
        for event in judged.events:
            mark = fingerprint(event.resource, event.fault_type, event.qualifier)
            (self.active.discard if event.event is EventKind.CLEARED else self.active.add)(mark)
        return [(str(event.event), event.fault_type, event.qualifier) for event in judged.events]


@pytest.mark.parametrize(
    ("row", "kind", "name", "level"),
    [
        ("PS Redundancy    | CAh | ok  | 10.3 | Redundancy Lost", "redundancy", "PS Redundancy", 2),
        ("PS Redundancy    | CAh | ok  | 10.3 | Fully Redundant", "redundancy", "PS Redundancy", 0),
        (
            "PS2 Status       | C9h | ok  | 10.2 | Presence detected, Failure detected",
            "psu",
            "PS2 Status",
            2,
        ),
        (
            "PS2 Status       | C9h | ok  | 10.2 | Presence detected, Predictive failure",
            "psu",
            "PS2 Status",
            1,
        ),
        (
            "PS1 Status | C8h | ok | 10.1 | Presence detected, Power Supply AC lost",
            "input",
            "PS1 Status",
            2,
        ),
        (
            "Intrusion        | 73h | ok  |  7.1 | General Chassis intrusion",
            "chassis",
            "Intrusion",
            2,
        ),
        ("Drive 4          | 64h | ok  |  4.4 | Drive Present, Drive Fault", "disk", "Drive 4", 2),
        ("FAN2             | 42h | lcr | 29.2 | 300 RPM", "fan", "FAN2", 2),
        ("FAN2             | 0 RPM             | nr", "fan", "FAN2", 3),
        ("Inlet Temp       | 01h | unc | 64.1 | 41 degrees C", "inlet", "Inlet Temp", 1),
        ("CPU1 Temp        | 02h | ucr |  3.1 | 99 degrees C", "temperature", "CPU1 Temp", 2),
        (
            "P1-DIMMA1        | 20h | ok  | 32.1 | Uncorrectable ECC",
            "memory_uncorrected",
            "P1-DIMMA1",
            2,
        ),
        ("12V | 10.80 | Volts | nc | na | na | 11.0 | 12.9 | na | na", "voltage", "12V", 1),
        (
            "12  | 12V  | Voltage | Nominal | 10.80 | V | 'At or Below (<=) Lower Critical Threshold'",
            "voltage",
            "12V",
            2,
        ),
        (
            "7,12V,Voltage,10.80,V,'At or Below (<=) Lower Non-Critical Threshold'",
            "voltage",
            "12V",
            1,
        ),
    ],
)
def test_a_sensor_is_read_by_its_words(row: str, kind: str, name: str, level: int) -> None:
    assert told(row)[(kind, name)] == level


@pytest.mark.parametrize(
    "row",
    [
        "PS Redundancy    | 0x00              | ok",
        "Intrusion        | 73h | ok  |  7.1 | ",
        "VBAT             | 33h | ns  |  7.1 | No Reading",
        "3.3V PG          | 12h | ok  |  7.1 | State Deasserted",
        "PS1 Status       | 0x1        | discrete   | 0x0100| na | na | na | na | na | na",
    ],
)
def test_an_ok_without_words_says_nothing_of_the_part(row: str) -> None:
    assert told(row) == {}


def test_sensors_that_say_nothing_at_all_are_no_health() -> None:
    seen = list(BMC.parse(taken(sel="", sensors="Pwr Unit Redund  | 0x00              | ok\n")))
    assert [o.value for o in seen if o.metric == "detector.answered"] == [False]


@pytest.mark.parametrize(
    ("row", "kind", "name", "level"),
    [
        (
            "7 | 09/08/2021 | 06:34:15 | Power Supply #0x3b | Failure detected | Asserted",
            "psu",
            "#0x3b",
            2,
        ),
        (
            "1f | 01/15/2025 | 02:58:40 JST | Fan FAN1 | Lower Critical going low  | Deasserted",
            "fan",
            "FAN1",
            0,
        ),
        (
            "2 |  Pre-Init  |0000015673| Fan FAN1 | Lower Critical going low | Asserted | Reading 3 < 5",
            "fan",
            "FAN1",
            2,
        ),
        (
            "3 | 01/15/25 | 02:58:40 | Memory #0x02 | Uncorrectable ECC",
            "memory_uncorrected",
            "#0x02",
            2,
        ),
        (
            "4 | Apr-02-2024 | 09:12:44 | PS1 Status | Power Supply | Failure detected",
            "psu",
            "PS1 Status",
            2,
        ),
        (
            "5,02-Apr-2024,09:12:44,PS1 Status,Power Supply,Failure detected ; Deassertion Event",
            "psu",
            "PS1 Status",
            0,
        ),
    ],
)
def test_an_entry_is_read_in_each_form_that_it_is_printed_in(
    row: str, kind: str, name: str, level: int
) -> None:
    (seen,) = (o for o in BMC.parse(taken(sel=row + "\n")) if o.metric == "bmc.log_entry")
    assert {k: seen.attributes[k] for k in ("kind", "name", "level")} == {
        "kind": kind,
        "name": name,
        "level": str(level),
    }
    assert sniff(row.encode()) == "sel"


def test_a_board_that_fails_to_read_one_sensor_of_many_has_answered() -> None:
    outputs = {
        "sel": Output(1, b"", b"SEL has no entries\n", timedelta(0)),
        "sensors": Output(
            1,
            b"FAN1 | 41h | ok | 29.1 | 9940 RPM\nUnable to send command: Invalid argument\n",
            b"",
            timedelta(0),
        ),
    }
    seen = list(BMC.parse(Reading("bmc", TARGET, NOW, outputs)))
    assert {o.metric: o.value for o in seen} == {
        "bmc.fan": 0,
        "bmc.log_cursor": "",
        "detector.answered": True,
    }


def sel(*rows: str) -> str:
    return "".join(
        f"{number:4x} | 01/15/2025 | 02:{number:02d}:00 UTC | {row}\n"
        for number, row in enumerate(rows, 1)
    )


def test_entries_of_before_the_first_sight_are_history_and_later_ones_are_faults() -> None:
    rounds = Rounds()
    old = "Power Supply PS1 Status | Failure detected | Asserted"
    assert rounds.see(list(BMC.parse(taken(sel=sel(old))))) == []
    assert rounds.see(
        list(BMC.parse(taken(sel=sel(old, "Fan FAN1 | Lower Critical going low | Asserted"))))
    ) == [("raised", "node.fan.failed", "FAN1")]
    assert (
        rounds.see(
            list(BMC.parse(taken(sel=sel(old, "Fan FAN1 | Lower Critical going low | Asserted"))))
        )
        == []
    )


def test_an_entry_that_says_that_it_is_over_clears() -> None:
    rounds, rows = Rounds(), ["Fan FAN1 | Lower Critical going low | Asserted"]
    rounds.see(list(BMC.parse(taken(sel=""))))
    rounds.see(list(BMC.parse(taken(sel=sel(*rows)))))
    rows.append("Fan FAN1 | Lower Critical going low | Deasserted")
    assert rounds.see(list(BMC.parse(taken(sel=sel(*rows))))) == [
        ("cleared", "node.fan.failed", "FAN1")
    ]


def test_what_came_and_went_between_two_rounds_is_no_fault() -> None:
    rounds = Rounds()
    rounds.see(list(BMC.parse(taken(sel=""))))
    rows = (
        "Voltage 12V | Lower Critical going low | Asserted",
        "Voltage 12V | Lower Critical going low | Deasserted",
    )
    assert rounds.see(list(BMC.parse(taken(sel=sel(*rows))))) == []


def test_a_log_that_was_cleared_tells_nothing_old_again() -> None:
    rounds = Rounds()
    rounds.see(
        list(BMC.parse(taken(sel=sel("Power Supply PS1 Status | Failure detected | Asserted"))))
    )
    cleared = "   1 | 01/16/2025 | 09:00:00 UTC | Event Logging Disabled SEL | Log area reset/cleared | Asserted\n"
    assert rounds.see(list(BMC.parse(taken(sel=cleared)))) == []
    after = (
        cleared
        + "   2 | 01/16/2025 | 09:10:00 UTC | Critical Interrupt PCIe | Bus Fatal Error | Asserted\n"
    )
    assert rounds.see(list(BMC.parse(taken(sel=after)))) == [
        ("raised", "node.hardware_event", "PCIe")
    ]


@given(cuts=st.lists(st.integers(0, 60), max_size=6))
def test_every_entry_after_the_first_sight_is_a_fault_exactly_once(cuts: list[int]) -> None:
    rows = [f"Memory DIMM{number} | Correctable ECC | Asserted" for number in range(60)]
    rounds, raised = Rounds(), []
    for end in sorted([0, *cuts, 60]):
        raised += [name for _, _, name in rounds.see(list(BMC.parse(taken(sel=sel(*rows[:end])))))]
    assert raised == [f"DIMM{number}" for number in range(60)]


def test_of_a_long_log_the_newest_entries_are_remembered_alone() -> None:
    rows = [
        f"Memory DIMM{number} | Correctable ECC | Asserted" for number in range(5 * MOST_ENTRIES)
    ]
    (cursor,) = (o.value for o in BMC.parse(taken(sel=sel(*rows))) if o.metric == "bmc.log_cursor")
    assert len(cursor) == 8 * MOST_ENTRIES


@pytest.mark.parametrize(
    "repeated", [" ", "\n", "1 | ", "| ", "Sensor ID : a ", "\n [", "1,", "{", "[", "'", "PS"]
)
def test_reading_takes_linear_time(repeated: str) -> None:
    """A backtracking pattern would take minutes over this."""
    text = f"1 | 01/01/2025 | {repeated * 60_000}"
    deadline = deadline_in(30)
    list(BMC.parse(taken(**{"sel": text, "sensors": text, "redfish.0": text})))
    sniff(text.encode())
    assert time.monotonic() < deadline


@given(st.binary(max_size=400))
def test_reading_words_is_total(text: bytes) -> None:
    for name in ("sel", "sensors", "redfish.0"):
        reading = Reading("bmc", TARGET, NOW, {name: Output(0, text, b"", timedelta(0))})
        seen = list(BMC.parse(reading))
        list(BMC.compare(seen, {}))
    assert sniff(text) in ("sel", "sensors", "redfish")


_KEYS = st.sampled_from(
    [
        "Status",
        "Health",
        "State",
        "Members",
        "@odata.type",
        "Name",
        "Links",
        "Oem",
        "LineInputStatus",
    ]
)
_LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
_DOCUMENTS = st.recursive(
    _LEAVES,
    lambda c: st.lists(c, max_size=3) | st.dictionaries(_KEYS, c, max_size=4),
    max_leaves=12,
)


@given(_DOCUMENTS)
def test_reading_documents_is_total(document: object) -> None:
    power = {"@odata.type": "#Power.v1_0_0.Power", "Power": document}
    log = {"@odata.type": "#LogEntryCollection.LogEntryCollection", "Members": [document]}
    list(redfish.read(taken(), [output(json.dumps(power)), output(json.dumps(log))]))


def test_a_document_nested_without_end_is_read_in_bounds() -> None:
    text = '{"Status": {"Health": "Critical"}, "Fans": ' * 300 + "1" + "}" * 300
    assert len(list(redfish.read(taken(), [output(text)]))) < 20


# The real programs.


@pytest.fixture(scope="module")
def sim() -> Iterator[IpmiSim]:
    made = IpmiSim().start()
    yield made
    made.remove()


@pytest.mark.needs("ipmi_sim", "ipmitool")
def test_a_real_controller_over_ipmi_is_well_breaks_and_is_mended(sim: IpmiSim) -> None:
    rounds, via = Rounds(), Transports(shell=IpmiShell(sim))

    def look() -> list[tuple[str, str, str]]:
        return rounds.see(list(BMC.parse(BMC.collect(TARGET, via, NOW))))

    assert look() == []
    sim.tell(
        f"sensor_set_value 0x20 0 {TEMPERATURE} 0x95 1",
        f"sensor_set_value 0x20 0 {FAN} 0x03 1",
        f"sensor_set_bit 0x20 0 {SUPPLY} 3 1 1",
        f"sensor_set_bit 0x20 0 {REDUNDANCY} 0 0 1",
        f"sensor_set_bit 0x20 0 {REDUNDANCY} 1 1 1",
    )
    wait_until(
        lambda: b"Redundancy Lost" in sim.ask("sel", "elist").stdout,
        within_s=10,
        what="the event log",
    )
    assert set(look()) == {
        ("raised", "node.temperature.high", "GPU Tray Temp"),
        ("raised", "node.fan.failed", "FAN1"),
        ("raised", "facility.power.input_lost", "PS1 Status"),
        ("raised", "node.redundancy_lost", "PS Redundancy"),
    }
    sim.tell(
        f"sensor_set_value 0x20 0 {TEMPERATURE} 0x30 1",
        f"sensor_set_value 0x20 0 {FAN} 0x60 1",
        f"sensor_set_bit 0x20 0 {SUPPLY} 3 0 1",
        f"sensor_set_bit 0x20 0 {REDUNDANCY} 1 0 1",
        f"sensor_set_bit 0x20 0 {REDUNDANCY} 0 1 1",
    )
    wait_until(
        lambda: b"Lost" not in sim.ask("sdr", "elist").stdout, within_s=10, what="the sensors"
    )
    assert {kind for kind, _, _ in look()} == {"cleared"}
    assert rounds.active == set()
    assert look() == []


class NoPrograms(OneByOne):
    """A node without ipmitool."""

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        return Output(127, b"", b"command not found", timedelta(0))


def test_a_real_redfish_service_is_walked_and_well() -> None:
    emulator = SushyEmulator()
    try:
        emulator.start()
        target = Target("gn001", "127.0.0.1", expected=Expected(urls={"redfish": emulator.url}))
        reading = BMC.collect(target, Transports(shell=NoPrograms(), http=HttpTransport()), NOW)
    finally:
        emulator.remove()
    documents = [
        json.loads(o.stdout) for name, o in reading.outputs.items() if name.startswith("redfish")
    ]
    kinds = {document.get("@odata.type", "").split(".")[0] for document in documents}
    assert kinds >= {"#ServiceRoot", "#ComputerSystem", "#Chassis", "#Thermal"}
    seen = list(BMC.parse(reading))
    assert Rounds().see(seen) == []
    assert [o.value for o in seen if o.metric == "detector.answered"] == [True]


class Board:
    """A Redfish service over HTTP with documents of the test's own."""

    def __init__(self, documents: dict[str, object]) -> None:
        self.documents, self.asked = documents, list[str]()

    def __enter__(self) -> Board:
        board = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                board.asked.append(self.path)
                document = board.documents.get(self.path.rstrip("/"))
                self.send_response(200 if document is not None else 404)
                self.end_headers()
                self.wfile.write(json.dumps(document or {}).encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def look(self, rounds: Rounds) -> list[tuple[str, str, str]]:
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        target = Target("gn001", "127.0.0.1", expected=Expected(urls={"redfish": url}))
        return rounds.see(
            list(
                BMC.parse(
                    BMC.collect(target, Transports(shell=NoPrograms(), http=HttpTransport()), NOW)
                )
            )
        )


def link(path: str) -> dict[str, str]:
    return {"@odata.id": f"/redfish/v1{path}"}


def entry(number: int, severity: str, message: str) -> dict[str, object]:
    told = {
        "@odata.type": "#LogEntry.v1_15_0.LogEntry",
        "Id": str(number),
        "Severity": severity,
        "Message": message,
    }
    return {**link(f"/Chassis/HGX/LogServices/Log/Entries/{number}"), **told}


def board() -> dict[str, object]:
    return {
        "/redfish/v1": {
            "@odata.type": "#ServiceRoot.v1_15_0.ServiceRoot",
            "Chassis": link("/Chassis"),
        },
        "/redfish/v1/Chassis": {
            "Members": [link("/Chassis/HGX"), link("/Chassis/HGX"), link("/Nowhere")]
        },
        "/redfish/v1/Chassis/HGX": {
            "Thermal": link("/Chassis/HGX/Thermal"),
            "LogServices": link("/Chassis/HGX/Logs"),
        },
        "/redfish/v1/Chassis/HGX/Thermal": {
            "Fans": [{"Name": "Tray fan", "Status": {"Health": "OK"}}]
        },
        "/redfish/v1/Chassis/HGX/Logs": {"Members": [link("/Chassis/HGX/LogServices/Log")]},
        "/redfish/v1/Chassis/HGX/LogServices/Log": {
            "Entries": link("/Chassis/HGX/LogServices/Log/Entries")
        },
        "/redfish/v1/Chassis/HGX/LogServices/Log/Entries": {
            **link("/Chassis/HGX/LogServices/Log/Entries"),
            "@odata.type": "#LogEntryCollection.LogEntryCollection",
            "Members": [entry(1, "Critical", "GPU tray temperature critical")],
        },
    }


def test_health_and_new_log_entries_of_a_board_are_faults_and_no_page_is_asked_twice() -> None:
    rounds = Rounds()
    with Board(board()) as service:
        assert service.look(rounds) == []
        assert len(service.asked) == len(set(service.asked))
        documents: dict[str, object] = service.documents
        documents["/redfish/v1/Chassis/HGX/Thermal"] = {
            "Fans": [{"Name": "Tray fan", "Status": {"Health": "Critical"}}]
        }
        entries = documents["/redfish/v1/Chassis/HGX/LogServices/Log/Entries"]
        assert isinstance(entries, dict)
        entries["Members"].append(entry(2, "Critical", "Power supply 3 failure detected"))
        assert set(service.look(rounds)) == {
            ("raised", "node.fan.failed", "Tray fan"),
            ("raised", "node.power_supply.failed", "2"),
        }


def test_links_to_other_machines_are_not_followed() -> None:
    documents = board()
    elsewhere = ("//10.1.1.1/redfish/v1/Chassis/1", "http://10.1.1.1/redfish/v1")
    documents["/redfish/v1/Chassis"] = {"Members": [{"@odata.id": path} for path in elsewhere]}
    with Board(documents) as service:
        service.look(Rounds())
        assert all(path.startswith("/redfish/v1") for path in service.asked)


def test_a_redfish_service_that_does_not_answer_is_no_health_of_the_board_and_no_dead_node() -> (
    None
):
    with Board({}) as service:
        port = service.server.server_address[1]
    target = Target(
        "gn001", "127.0.0.1", expected=Expected(urls={"redfish": f"http://127.0.0.1:{port}"})
    )
    seen = list(
        BMC.parse(BMC.collect(target, Transports(shell=NoPrograms(), http=HttpTransport()), NOW))
    )
    assert [o.value for o in seen if o.metric == "detector.answered"] == [False]


def test_a_supply_without_input_is_the_facilitys_affair() -> None:
    supply = {
        "@odata.type": "#PowerSupply.v1_5_0.PowerSupply",
        "Name": "PSU 2",
        "LineInputStatus": "LossOfInput",
    }
    seen = list(
        redfish.read(taken(), [output(json.dumps({**supply, "Status": {"Health": "Critical"}}))])
    )
    assert {(event[1], event[2]) for event in Rounds().see(seen)} == {
        ("node.power_supply.failed", "PSU 2"),
        ("facility.power.input_lost", "PSU 2"),
    }
    assert str(catalog.load()["facility.power.input_lost"].component) == "facility"


@pytest.mark.parametrize(
    "text", ["Server reset.", "PCR Measurements Changed", "User root logged in"]
)
def test_what_people_did_to_the_controller_is_a_notice_and_no_hardware_fault(text: str) -> None:
    logs = {
        "@odata.type": "#LogEntryCollection.LogEntryCollection",
        "Members": [entry(1, "Warning", text)],
    }
    (said,) = (
        o for o in redfish.read(taken(), [output(json.dumps(logs))]) if o.metric == "bmc.log_entry"
    )
    assert said.attributes["kind"] == "notice"
    assert str(catalog.load()["node.bmc.notice"].action) == "none"
