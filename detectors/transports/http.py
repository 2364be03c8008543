"""HTTP GET as a transport: exporters' pages, query APIs, Redfish logs. Never sends anything but a
GET.

Every time limit and every bound of an answer lives here. No proxy is used: what is watched stands
in the site's own network. Python 3.9, standard library alone.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Optional, Union
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from detectors.detector import DetectorError, Output, Target, Unreachable
from detectors.transports import error_text

# A page of dcgm-exporter for eight GPUs is some 200 KiB; a query over 10,000 nodes of eight GPUs
# some 20 MiB.
LONGEST_BODY = 64 * 1024 * 1024
_CHUNK = 65536
_MOST_REDIRECTS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SCHEMES = {"http": 80, "https": 443}
_AGENT = "kintsugi"


@dataclass(frozen=True)
class Bearer:
    """A token, sent as `Authorization: Bearer`. Never printed."""

    token: str = field(repr=False)


@dataclass(frozen=True)
class Basic:
    """User and password, sent as `Authorization: Basic`. The password is never printed."""

    user: str
    password: str = field(repr=False)


Credentials = Callable[[Target, str], Optional[Union[Bearer, Basic]]]
"""What to show to which target at which URL (without user, password and query); None: nothing."""


def send_no_credentials(target: Target, url: str) -> None:
    """Most exporters ask for nothing."""


class HttpTransport:
    """detectors.detector.Http over the network. Certificates are verified, against `ca_file` where
    one is given.

    Redirects are followed on the same host and port alone, never from https to http. Safe to use
    from several threads.
    """

    def __init__(
        self,
        credentials: Credentials = send_no_credentials,
        *,
        ca_file: Optional[str] = None,
        longest: int = LONGEST_BODY,
    ) -> None:
        """Raises DetectorError when `ca_file` cannot be read."""
        self._credentials = credentials
        self._longest = longest
        # The system's own certificates take tens of milliseconds to read: only when https is first
        # asked for.
        self._tls = _make_tls(ca_file) if ca_file else None

    def get(self, target: Target, url: str, timeout: timedelta) -> Output:
        """The answer; status None when it did not come to its end in time. Raises Unreachable,
        DetectorError."""
        begun = time.monotonic()
        deadline = begun + timeout.total_seconds()
        parts = _check_url(target, url)
        for _ in range(_MOST_REDIRECTS + 1):
            output, location = self._ask(target, parts, deadline)
            if not location:
                return Output(
                    output.status,
                    output.stdout,
                    output.stderr,
                    timedelta(seconds=time.monotonic() - begun),
                )
            parts = _follow(target, parts, location)
        raise DetectorError(
            f"{_format_shown(parts)} on {target.name}: more than {_MOST_REDIRECTS} redirects"
        )

    def _ask(self, target: Target, parts: SplitResult, deadline: float) -> tuple[Output, str]:
        """One request: its answer, and where it redirects to."""
        headers = self._make_headers(target, parts)
        limit_s = deadline - time.monotonic()
        if limit_s <= 0:
            return _make_late_output(b""), ""
        connection = self._make_connection(parts, limit_s)
        try:
            _connect(target, parts, connection)
            with _end_at(connection, deadline):
                connection.request("GET", _get_path(parts), headers=headers)
                response = connection.getresponse()
                location = (
                    response.getheader("Location", "") if response.status in _REDIRECTS else ""
                )
                return self._read(target, parts, response, deadline), location
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() >= deadline - 0.01:
                return _make_late_output(b""), ""
            reason = error_text.format_reason(error)
            raise DetectorError(
                f"{_format_shown(parts)} on {target.name}: the answer broke off: {reason}"
            ) from None
        finally:
            connection.close()

    def _read(
        self,
        target: Target,
        parts: SplitResult,
        response: http.client.HTTPResponse,
        deadline: float,
    ) -> Output:
        body = bytearray()
        try:
            while chunk := response.read(_CHUNK):
                body += chunk
                if len(body) > self._longest:
                    where = f"{_format_shown(parts)} on {target.name}"
                    raise DetectorError(f"{where}: the answer is longer than {self._longest} bytes")
        except (OSError, http.client.HTTPException):
            if time.monotonic() >= deadline - 0.01:
                return _make_late_output(bytes(body))
            raise
        if time.monotonic() >= deadline:
            return _make_late_output(bytes(body))
        if (
            response.length
        ):  # read ends quietly where the peer hung up before the length that it announced
            raise http.client.IncompleteRead(bytes(body[:0]), response.length)
        status = 0 if 200 <= response.status < 300 else response.status
        reason = f"HTTP {response.status} {response.reason}".encode("utf-8", "replace")
        return Output(status, bytes(body), b"" if status == 0 else reason, timedelta(0))

    def _make_headers(self, target: Target, parts: SplitResult) -> dict[str, str]:
        headers = {
            "User-Agent": _AGENT,
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            "Connection": "close",
        }
        shown = self._credentials(target, _format_shown(parts))
        if shown is None and parts.username:
            shown = Basic(unquote(parts.username), unquote(parts.password or ""))
        if shown is not None:
            headers["Authorization"] = _get_authorization(target, parts, shown)
        return headers

    def _make_connection(self, parts: SplitResult, limit_s: float) -> http.client.HTTPConnection:
        host, port = parts.hostname or "", parts.port or _SCHEMES[parts.scheme]
        if parts.scheme == "https":
            self._tls = self._tls or _make_tls(None)
            return http.client.HTTPSConnection(host, port, timeout=limit_s, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=limit_s)


def _make_tls(ca_file: Optional[str]) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise DetectorError(f"certificates {ca_file} cannot be read: {error}") from error


def _connect(target: Target, parts: SplitResult, connection: http.client.HTTPConnection) -> None:
    where = f"{_format_shown(parts)} on {target.name}"
    try:
        connection.connect()
    except ssl.SSLCertVerificationError as error:
        raise DetectorError(
            f"{where}: its certificate is not trusted: {error.verify_message}"
        ) from None
    except ConnectionRefusedError:
        # The machine answers, and says that no such server runs: it is reachable.
        raise DetectorError(f"{where}: connection refused, nothing listens there") from None
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"{where}: {error_text.format_reason(error)}") from None


@contextlib.contextmanager
def _end_at(connection: http.client.HTTPConnection, deadline: float) -> Iterator[None]:
    """Cuts the connection at the deadline: a socket's own limit starts anew with every byte that
    trickles in."""
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), _cut, (connection.sock,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _check_url(target: Target, url: str) -> SplitResult:
    """Raises DetectorError for what is no HTTP address; the text never repeats what may hold a
    secret."""
    try:
        parts = urlsplit(url)
        is_well = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_well = False
    if not is_well or any(ord(sign) <= 32 or ord(sign) >= 127 for sign in url):
        raise DetectorError(f"{target.name}: the configured address is no http or https URL")
    return parts


def _follow(target: Target, parts: SplitResult, location: str) -> SplitResult:
    there = _check_url(target, urljoin(_format_shown(parts), location))
    before = (parts.scheme, parts.hostname, _get_port(parts))
    if (there.scheme, there.hostname, _get_port(there)) != before:
        asked = f"{_format_shown(parts)} on {target.name}"
        raise DetectorError(
            f"{asked}: it redirects to {_format_shown(there)}, which is not followed"
        )
    return there._replace(netloc=parts.netloc)


def _get_port(parts: SplitResult) -> int:
    return parts.port or _SCHEMES[parts.scheme]


def _get_authorization(target: Target, parts: SplitResult, shown: Union[Bearer, Basic]) -> str:
    """Raises DetectorError for a token with a line end, which would be a header of its own."""
    if isinstance(shown, Basic):
        pair = f"{shown.user}:{shown.password}".encode()
        return f"Basic {base64.b64encode(pair).decode('ascii')}"
    if not shown.token.isascii() or not shown.token.isprintable():
        asked = f"{_format_shown(parts)} on {target.name}"
        raise DetectorError(f"{asked}: the configured token holds characters that cannot be sent")
    return f"Bearer {shown.token}"


def _get_path(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _format_shown(parts: SplitResult) -> str:
    """Without user, password and query: any of them may be a secret."""
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"


def _make_late_output(body: bytes) -> Output:
    return Output(None, body, b"the answer did not come to its end in time", timedelta(0))
