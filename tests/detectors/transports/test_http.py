"""The HTTP transport against a real server: limits, credentials, redirects, and what its errors
never say."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from detectors.detector import DetectorError, Http, Target, Unreachable
from detectors.transports.http import Basic, Bearer, HttpTransport

TARGET = Target("gn001", "127.0.0.1")
SOON = timedelta(seconds=5)
SECRET = "s3cret-token"


class Page(BaseHTTPRequestHandler):
    """Each path is one behaviour."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        act: Callable[[], None] = getattr(
            self, f"page_{self.path.split('?')[0].strip('/')}", self.page_missing
        )
        act()

    def log_message(self, *args: object) -> None:
        """Quiet."""

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def page_metrics(self) -> None:
        self.answer(200, b"up 1\n")

    def page_missing(self) -> None:
        self.answer(404, b"404 page not found\n")

    def page_who(self) -> None:
        self.answer(200, self.headers.get("Authorization", "nobody").encode())

    def page_query(self) -> None:
        self.answer(200, self.path.encode())

    def page_here(self) -> None:
        self.answer(302, b"", Location="/metrics")

    def page_round(self) -> None:
        self.answer(302, b"", Location="/round")

    def page_away(self) -> None:
        self.answer(302, b"", Location="http://localhost.invalid/metrics?token=x")

    def page_long(self) -> None:
        self.answer(200, b"x" * 100_000)

    def page_slow(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        for _ in range(200):
            self.wfile.write(b"x")
            time.sleep(0.05)

    def page_short(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"x")
        self.close_connection = True


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up is what some tests are about."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = Server(("127.0.0.1", 0), Page)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    ).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_page_comes_whole_and_its_status_is_zero(site: str) -> None:
    client: Http = HttpTransport()
    output = client.get(TARGET, f"{site}/metrics", SOON)
    assert (output.status, output.stdout, output.stderr) == (0, b"up 1\n", b"")
    assert output.took > timedelta(0)


def test_a_query_reaches_the_server(site: str) -> None:
    assert (
        HttpTransport().get(TARGET, f"{site}/query?query=up%7B%7D", SOON).stdout
        == b"/query?query=up%7B%7D"
    )


def test_an_http_error_is_an_output_with_its_status(site: str) -> None:
    output = HttpTransport().get(TARGET, f"{site}/nothing", SOON)
    assert (output.status, output.stdout) == (404, b"404 page not found\n")
    assert output.complaint == "status 404: HTTP 404 Not Found"


@pytest.mark.parametrize(
    ("shown", "header"),
    [
        (None, b"nobody"),
        (Bearer(SECRET), b"Bearer s3cret-token"),
        (Basic("kin", "tsugi"), b"Basic a2luOnRzdWdp"),
    ],
)
def test_credentials_are_asked_for_by_target_and_address(
    site: str, shown: Bearer | Basic | None, header: bytes
) -> None:
    asked: list[tuple[str, str]] = []

    def credentials(target: Target, url: str) -> Bearer | Basic | None:
        asked.append((target.name, url))
        return shown

    assert HttpTransport(credentials).get(TARGET, f"{site}/who?x=1", SOON).stdout == header
    assert asked == [("gn001", f"{site}/who")]


def test_user_and_password_in_the_address_are_sent_and_never_told(site: str) -> None:
    url = site.replace("http://", "http://kin:tsugi@")
    assert HttpTransport().get(TARGET, f"{url}/who", SOON).stdout == b"Basic a2luOnRzdWdp"
    with pytest.raises(DetectorError) as caught:
        HttpTransport().get(TARGET, f"{url}/away", SOON)
    assert "tsugi@" not in str(caught.value)
    assert "token" not in str(caught.value)


def test_a_redirect_on_the_same_host_is_followed(site: str) -> None:
    assert HttpTransport().get(TARGET, f"{site}/here", SOON).stdout == b"up 1\n"


@pytest.mark.parametrize(
    ("path", "words"), [("away", "is not followed"), ("round", "more than 3 redirects")]
)
def test_a_redirect_elsewhere_or_in_a_circle_is_refused(site: str, path: str, words: str) -> None:
    with pytest.raises(DetectorError, match=words):
        HttpTransport().get(TARGET, f"{site}/{path}", SOON)


def test_an_answer_beyond_the_bound_is_an_error(site: str) -> None:
    with pytest.raises(DetectorError, match="longer than 1000 bytes"):
        HttpTransport(longest=1000).get(TARGET, f"{site}/long", SOON)


def test_an_answer_that_trickles_is_cut_off_at_the_time_limit(site: str) -> None:
    output = HttpTransport().get(TARGET, f"{site}/slow", timedelta(seconds=0.3))
    assert output.status is None
    assert "no answer within its time limit" in output.complaint


def test_an_answer_that_breaks_off_is_an_error_and_never_a_page(site: str) -> None:
    with pytest.raises(DetectorError, match="broke off"):
        HttpTransport().get(TARGET, f"{site}/short", SOON)


def test_a_server_that_speaks_something_else_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(
            target=_say, args=(listener, b"SSH-2.0-OpenSSH_9.2\r\n"), daemon=True
        ).start()
        with pytest.raises(DetectorError, match="gn001"):
            HttpTransport().get(TARGET, f"http://127.0.0.1:{listener.getsockname()[1]}/", SOON)


def test_a_machine_on_which_nothing_listens_is_reachable_all_the_same() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(DetectorError, match="gn001: connection refused") as caught:
        HttpTransport().get(TARGET, f"http://127.0.0.1:{port}/?token={SECRET}", SOON)
    assert not isinstance(caught.value, Unreachable)
    assert SECRET not in str(caught.value)


def test_a_machine_that_does_not_take_the_connection_is_unreachable() -> None:
    with (
        contextlib.ExitStack() as held,
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
    ):
        for _ in range(
            4
        ):  # a full backlog: further connections hang as they do before a dead machine
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/?token={SECRET}"
        with pytest.raises(Unreachable, match="gn001") as caught:
            HttpTransport().get(TARGET, url, timedelta(seconds=0.3))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["", "gn001:9400", "file:///etc/passwd", "http://", "http://x/a b", "http://x:99999/"]
)
def test_what_is_no_http_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(DetectorError, match="no http or https URL") as caught:
        HttpTransport().get(TARGET, url, SOON)
    assert url == "" or url not in str(caught.value)


def test_a_token_with_a_line_end_is_refused_without_repeating_it(site: str) -> None:
    with pytest.raises(DetectorError, match="cannot be sent") as caught:
        HttpTransport(lambda target, url: Bearer(f"{SECRET}\r\nX: y")).get(
            TARGET, f"{site}/who", SOON
        )
    assert SECRET not in str(caught.value)


def test_credentials_do_not_print_their_secret() -> None:
    assert SECRET not in repr(Bearer(SECRET)) + repr(Basic("kin", SECRET))


def test_a_certificate_is_verified_and_a_known_one_accepted(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *(
                "-keyout",
                str(key),
                "-out",
                str(certificate),
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
            ),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    server = Server(("127.0.0.1", 0), Page)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    ).start()
    url = f"https://127.0.0.1:{server.server_port}/metrics"
    try:
        with pytest.raises(DetectorError, match="certificate is not trusted"):
            HttpTransport().get(TARGET, url, SOON)
        assert HttpTransport(ca_file=str(certificate)).get(TARGET, url, SOON).stdout == b"up 1\n"
    finally:
        server.shutdown()
        server.server_close()


def test_certificates_that_cannot_be_read_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(DetectorError, match="cannot be read"):
        HttpTransport(ca_file=str(tmp_path / "none.pem"))


def _say(listener: socket.socket, words: bytes) -> None:
    peer, _ = listener.accept()
    with peer:
        peer.recv(4096)
        peer.sendall(words)
