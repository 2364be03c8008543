"""Somebody outside hears that sweeps are done; an address that does not answer is only logged."""

from __future__ import annotations

import datetime
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from incidents.models import PeriodicTask
from kintsugi import tasks
from kintsugi.configuration import config
from kintsugi.health import outside_ping


class Outside:
    """An HTTPS server that counts who asks for what."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        self.status = 200
        outside = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outside.asked.append(self.path)
                self.send_response(outside.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.certificate = _make_certificate(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate)
        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_port}/ping/a-secret"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _make_certificate(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    builder = builder.add_extension(names, critical=False)
    is_ca = x509.BasicConstraints(ca=True, path_length=None)
    builder = builder.add_extension(is_ca, critical=True)
    path = folder / "outside.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    signed = builder.sign(key, hashes.SHA256())
    path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    server = Outside(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
    monkeypatch.setenv("no_proxy", "localhost")
    yield server
    server.close()


def test_it_asks_for_the_address(outside: Outside) -> None:
    assert outside_ping.send(outside.url)
    assert outside.asked == ["/ping/a-secret"]


@pytest.mark.parametrize("status", [404, 503])
def test_a_refusal_is_logged_without_the_address(
    outside: Outside, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    outside.status = status
    assert not outside_ping.send(outside.url)
    assert str(status) in caplog.text
    assert "a-secret" not in caplog.text


def test_a_certificate_that_nobody_vouches_for_is_not_taken(
    outside: Outside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")
    assert not outside_ping.send(outside.url)
    assert outside.asked == []
    assert "a-secret" not in caplog.text


def test_an_address_without_tls_is_no_setting() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"KINTSUGI_PING_URL=\(hidden\): expected https"):
        config.load({"KINTSUGI_PING_URL": "http://hc.example/secret"})


@pytest.mark.django_db
class TestSweep:
    @pytest.fixture
    def pinged(self, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[list[str]]:
        """What is sent, with Celery calling the task at once."""
        sent: list[str] = []
        values = settings.KINTSUGI | {"KINTSUGI_PING_URL": "https://hc.example/1"}
        monkeypatch.setattr(outside_ping, "send", sent.append)
        monkeypatch.setattr(tasks, "_send", lambda task, *_: task())
        with override_settings(KINTSUGI=values):
            yield sent

    def test_it_pings_at_most_once_a_minute_when_its_work_is_done(
        self, pinged: list[str], django_capture_on_commit_callbacks: Any
    ) -> None:
        for _ in range(3):
            with django_capture_on_commit_callbacks(execute=True):
                tasks.sweep()
        assert pinged == ["https://hc.example/1"]
        PeriodicTask.objects.filter(name=outside_ping.TASK).delete()
        with django_capture_on_commit_callbacks(execute=True):
            tasks.sweep()
        assert len(pinged) == 2

    def test_it_does_not_when_its_work_failed(
        self,
        pinged: list[str],
        monkeypatch: pytest.MonkeyPatch,
        django_capture_on_commit_callbacks: Any,
    ) -> None:
        class Broken:
            def sweep(self) -> None:
                raise ValueError("of the sweep")

        monkeypatch.setattr(tasks, "pipeline", Broken)
        with (
            pytest.raises(ValueError, match="sweep"),
            django_capture_on_commit_callbacks(execute=True),
        ):
            tasks.sweep()
        assert pinged == []
