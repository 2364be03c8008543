"""Redfish at its edges: which system is the node, what resets it has, who sees the password, and
when it ends."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbooks.power import redfish as power_redfish
from runbooks.power.access import BmcAccess, BmcKind
from runbooks.power.http import BmcHttp, HttpResponse
from runbooks.power.protocol import PowerError, PowerRefusal, PowerState
from runbooks.power.redfish import RedfishPower
from tests.runbooks.power_doors import machine, redfish
from tests.services.redfish import SushyEmulator, a_system

ROOT = {"Systems": {"@odata.id": "/redfish/v1/Systems"}}
RESET = "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset"


def link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def system(number: str = "1", **changes: Any) -> dict[str, Any]:
    actions = {
        "#ComputerSystem.Reset": {
            "target": RESET,
            "ResetType@Redfish.AllowableValues": ["On", "ForceOff"],
        }
    }
    return {
        "Id": number,
        "PowerState": "On",
        "SerialNumber": f"S{number}",
        "Actions": actions,
        **changes,
    }


def documents(*systems: Mapping[str, Any]) -> dict[str, Any]:
    paths = {f"/redfish/v1/Systems/{one['Id']}": one for one in systems}
    return {
        "/redfish/v1/": ROOT,
        "/redfish/v1/Systems": {"Members": [link(path) for path in paths]},
        **paths,
    }


class Service:
    """Answers what it is given by path: a document, or a status. `hangs`: no POST is answered;
    `posts` holds them."""

    def __init__(
        self, answers: Mapping[str, Any], *, posted: int = 204, hangs: bool = False
    ) -> None:
        self.posts: list[str] = []
        self.asked: list[str] = []
        service = self

        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked.append(self.path)
                found = answers.get(self.path, 404)
                self._send(
                    found if isinstance(found, int) else 200,
                    {} if isinstance(found, int) else found,
                )

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                service.posts.append(json.loads(body)["ResetType"])
                if hangs:
                    service.released.wait(10)
                    return
                self._send(posted, {"error": {"@Message.ExtendedInfo": [{"Message": "said so"}]}})

            def _send(self, status: int, document: Any) -> None:
                text = b"" if status == 204 else json.dumps(document).encode()
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", "https://elsewhere/")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args: object) -> None:
                """Quiet."""

        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def serving(answers: Mapping[str, Any], **more: Any) -> Iterator[Service]:
    service = Service(answers, **more)
    try:
        yield service
    finally:
        service.close()


def test_the_system_is_chosen_by_the_nodes_serial_where_a_service_has_several() -> None:
    boards = documents(
        system("HGX_Baseboard_0", SerialNumber="B1", PowerState="Off"),
        system("DGX", SerialNumber="N1"),
    )
    with serving(boards) as service:
        assert redfish().read_state(machine("gn001", service.url, serial="N1")) is PowerState.ON
        assert (
            redfish(system="HGX_Baseboard_0").read_state(machine("gn001", service.url))
            is PowerState.OFF
        )


@pytest.mark.parametrize(
    ("wanted", "serial", "words"),
    [
        ("", "", "shows 2 systems (1, 2), and which of them is the node is not told"),
        ("3", "", "0 of them fit 3"),
        ("", "S3", "2 of them fit S3"),
        ("same", "", "2 of them fit same"),
        ("1", "S2", "another machine's: it shows the serial S1, and the inventory says S2"),
    ],
)
def test_a_system_that_cannot_be_told_is_refused_and_nothing_is_switched(
    wanted: str, serial: str, words: str
) -> None:
    with serving(documents(system("1", Name="same"), system("2", Name="same"))) as service:
        with pytest.raises(PowerRefusal) as raised:
            redfish(system=wanted).turn_off(machine("gn001", service.url, serial=serial))
        assert words in str(raised.value)
        assert service.posts == []


def test_a_single_system_with_another_serial_is_another_machine() -> None:
    with serving(documents(system())) as service:
        with pytest.raises(PowerRefusal, match="another machine's"):
            redfish().turn_off(machine("gn001", service.url, serial="S9"))
        assert service.posts == []
    with serving(documents(system(SerialNumber="BOARD", SKU="TAG"))) as service:
        redfish().turn_off(machine("gn001", service.url, serial="TAG"))
        assert service.posts == ["ForceOff"]


def test_only_a_reset_that_the_board_has_is_asked_for() -> None:
    info = "/redfish/v1/Systems/1/ResetActionInfo"
    action = {"#ComputerSystem.Reset": {"target": RESET, "@Redfish.ActionInfo": info}}
    rows = {"Parameters": [{"Name": "ResetType", "AllowableValues": ["ForceOn", "ForceOff"]}]}
    with serving({**documents(system(PowerState="Off", Actions=action)), info: rows}) as service:
        redfish().turn_on(machine("gn001", service.url))
        assert service.posts == ["ForceOn"]
    action["#ComputerSystem.Reset"] = {
        "target": RESET,
        "ResetType@Redfish.AllowableValues": ["PowerCycle", "Nmi"],
    }
    with serving(documents(system(Actions=action))) as service:
        with pytest.raises(PowerRefusal, match="no reset of kind ForceOff; it has PowerCycle, Nmi"):
            redfish().turn_off(machine("gn001", service.url))
        assert service.posts == []


@pytest.mark.parametrize(
    ("status", "outcome", "words"),
    [
        (501, PowerRefusal, "does not take ComputerSystem.Reset ForceOff: HTTP 501 .said so."),
        (400, PowerRefusal, "HTTP 400 .said so."),
        (403, PowerRefusal, "give the user the role Operator"),
        (308, PowerRefusal, "redirect, which is not followed"),
        (409, PowerError, "HTTP 409 .said so."),
        (503, PowerError, "HTTP 503"),
    ],
)
def test_a_reset_that_is_not_taken_is_told_in_the_boards_words(
    status: int, outcome: type[PowerError], words: str
) -> None:
    with serving(documents(system()), posted=status) as service:
        with pytest.raises(outcome, match=words) as raised:
            redfish().turn_off(machine("gn001", service.url))
        assert isinstance(raised.value, PowerRefusal) is (outcome is PowerRefusal)


def test_a_reset_whose_answer_does_not_come_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_redfish, "LIMIT", power_redfish.LIMIT / 30)
    with serving(documents(system()), hangs=True) as service:
        with pytest.raises(PowerError, match="no answer in time") as raised:
            redfish().turn_off(machine("gn001", service.url))
        assert not isinstance(raised.value, PowerRefusal)
        assert service.posts == ["ForceOff"]


def test_an_answer_that_trickles_ends_in_time() -> None:
    class Trickle(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(OSError):
                for _ in range(100):
                    self.wfile.write(b"H")
                    self.wfile.flush()
                    stopped.wait(0.1)

        def log_message(self, *args: object) -> None:
            """Quiet."""

    stopped = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Trickle)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    access = BmcAccess(BmcKind.REDFISH, "kintsugi", "right", verify=False)
    try:
        with pytest.raises(PowerError, match="no answer in time"):
            BmcHttp(
                "gn001",
                f"http://127.0.0.1:{server.server_port}",
                access,
                deadline=time.monotonic() + 1,
            ).get("/")
    finally:
        stopped.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("shown", [None, "Paused", 7, ["On"], {}])
def test_a_board_that_does_not_say_whether_it_is_on_is_neither(shown: object) -> None:
    with (
        serving(documents(system(PowerState=shown))) as service,
        pytest.raises(PowerError, match="does not say whether power is on"),
    ):
        redfish().read_state(machine("gn001", service.url))


def test_a_board_on_its_way_is_changing_and_is_not_asked_again() -> None:
    with serving(documents(system(PowerState="PoweringOff"))) as service:
        assert redfish().read_state(machine("gn001", service.url)) is PowerState.CHANGING
        redfish().turn_off(machine("gn001", service.url))
        assert service.posts == []


def test_no_link_leads_the_password_to_another_machine() -> None:
    elsewhere = (
        "//10.1.1.1/redfish/v1/Systems/1",
        "http://10.1.1.1/redfish/v1/Systems/1",
        "/a b",
        7,
    )
    root = {
        "/redfish/v1/": ROOT,
        "/redfish/v1/Systems": {"Members": [link(path) for path in elsewhere]},
    }  # type: ignore[arg-type]
    with serving(root) as service:
        with pytest.raises(PowerRefusal, match="shows 0 systems"):
            redfish().read_state(machine("gn001", service.url))
        assert service.asked == ["/redfish/v1/", "/redfish/v1/Systems"]


@pytest.mark.parametrize(
    "address", ["ftp://10.0.9.1", "https://u:hush@10.0.9.1", "https://h/path", "h:port", "a b"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(PowerRefusal, match="expected an address such as") as raised:
        redfish().read_state(machine("gn001", address))
    assert "hush" not in str(raised.value)


def test_the_password_is_not_shown_over_plain_http_unless_somebody_said_so() -> None:
    access = BmcAccess(BmcKind.REDFISH, "kintsugi", "right")
    with serving(documents(system())) as service:
        with pytest.raises(PowerRefusal, match="verify = false") as raised:
            RedfishPower(access).read_state(machine("gn001", service.url))
        assert service.asked == []
    assert "right" not in str(raised.value)


def test_a_certificate_is_verified_unless_somebody_said_otherwise(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = (
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    )
    names = ("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(
        [*made, "-keyout", str(key), "-out", str(certificate), *names],
        check=True,
        capture_output=True,
    )
    emulator = SushyEmulator(systems=[a_system(1)], tls=(certificate, key))
    try:
        node = machine("gn001", emulator.start().url)
        with pytest.raises(PowerRefusal, match="certificate is not trusted"):
            RedfishPower(BmcAccess(BmcKind.REDFISH, "kintsugi", "x")).read_state(node)
        known = BmcAccess(BmcKind.REDFISH, "kintsugi", "x", ca_file=str(certificate))
        unverified = BmcAccess(BmcKind.REDFISH, "kintsugi", "x", verify=False)
        for access in (known, unverified):
            assert RedfishPower(access).read_state(node) is PowerState.ON
        with pytest.raises(PowerRefusal, match="cannot be read"):
            RedfishPower(
                BmcAccess(BmcKind.REDFISH, "k", "x", ca_file=str(tmp_path / "gone"))
            ).read_state(node)
    finally:
        emulator.remove()


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=12)
    | st.sampled_from(["On", "Off", "/redfish/v1/x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "@odata.id",
                    "Members",
                    "Systems",
                    "Actions",
                    "#ComputerSystem.Reset",
                    "target",
                    "PowerState",
                ]
            )
            | st.text(max_size=8),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(max_size=5), _JSON, max_size=4), _JSON, st.integers(100, 599))
def test_whatever_a_service_answers_ends_in_a_state_or_a_sentence(
    root: dict[str, Any], body: object, status: int
) -> None:
    answers = [
        HttpResponse(200, {**ROOT, **root}),
        HttpResponse(200, {"Members": [link("/redfish/v1/Systems/1")]}),
    ]

    class Scripted(BmcHttp):
        def get(self, path: str) -> HttpResponse:
            document = body if isinstance(body, dict) else {}
            return answers.pop(0) if answers else HttpResponse(status, document)

    node = machine("gn001", "https://10.0.9.1")
    service = Scripted(
        "gn001", "https://10.0.9.1", BmcAccess(BmcKind.REDFISH, "k", "x"), deadline=0
    )
    said = ""
    try:
        found = power_redfish._find_system(service, node, BmcAccess(BmcKind.REDFISH, "k", "x"))
        assert power_redfish._parse_state(service, found) in PowerState
    except PowerError as error:
        said = str(error)
    assert not said or "gn001's management controller at https://10.0.9.1" in said
