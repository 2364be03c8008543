"""One request to a management controller: JSON there and back, within a deadline. Follows no
redirect, uses no proxy.

Plain http.client: sushy's own connector sends a POST again when its answer did not come, up to
three times with sleeps in between, which would repeat a power-off blindly; and neither it nor
requests has a limit for a whole exchange.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from runbooks.power.access import BmcAccess
from runbooks.power.protocol import PowerError, PowerRefusal

# A ComputerSystem of a large server is some 20 KiB; a collection of systems is smaller.
_LONGEST_BODY = 2 * 1024 * 1024
# Of one connection: past it a controller is taken to be away. Our choice; TCP's second SYN goes out
# after 1 s, its third after 3 s.
_CONNECT_S = 8.0
_SHOWN = 200
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class HttpResponse:
    """`document` is empty where the body holds no JSON object."""

    status: int
    document: Mapping[str, Any]

    @property
    def is_well(self) -> bool:
        return 200 <= self.status < 300

    @property
    def words(self) -> str:
        """What the controller said beside its status, on one line (DSP0266, section 8.6: error
        responses)."""
        error = self.document.get("error")
        body = error if isinstance(error, Mapping) else {}
        more = body.get("@Message.ExtendedInfo")
        first = more[0] if isinstance(more, list) and more and isinstance(more[0], Mapping) else {}
        text = str(first.get("Message") or body.get("message") or "")
        return f"HTTP {self.status}" + (f" ({' '.join(text.split())[:_SHOWN]})" if text else "")


class BmcHttp:
    """The service of one controller. `deadline`: a moment of `time.monotonic` that no request
    outlives."""

    def __init__(self, node: str, address: str, access: BmcAccess, *, deadline: float) -> None:
        """Raises PowerRefusal for an address that is no http or https URL, and for plain http that
        nobody allowed."""
        self.address = address if "://" in address else f"https://{address}"
        shown = self.address if "@" not in self.address else "an address with a password"
        self.who = f"{node}'s management controller at {shown}"
        self._parts = _parse_address(self.who, self.address)
        self._access = access
        self._deadline = deadline
        if self._parts.scheme == "http" and access.verify:
            raise PowerRefusal(
                f"{self.who} would be shown the password over plain http: give an https address, or"
                " say verify = false in [group.bmc]"
            )

    def get(self, path: str) -> HttpResponse:
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> HttpResponse:
        """Sent once. A PowerError after it was sent leaves open whether it was done."""
        return self._ask("POST", path, json.dumps(body).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> HttpResponse:
        connection = http.client.HTTPConnection(self._parts.hostname or "", _get_port(self._parts))
        try:
            connection.sock = self._connect()
            with _cut_at(connection.sock, self._deadline):
                connection.sock = self._encrypt(connection.sock)
                connection.request(method, path, body=body, headers=self._build_headers(body))
                response = connection.getresponse()
                text = response.read(_LONGEST_BODY)
        except (OSError, http.client.HTTPException) as error:
            is_late = time.monotonic() >= self._deadline - 0.01
            why = (
                "no answer in time" if is_late else f"the answer broke off ({_format_error(error)})"
            )
            raise PowerError(f"{self.who}: {method} {path}: {why}.") from None
        finally:
            connection.close()
        if response.status in (401, 403):
            raise self._build_login_refusal(response.status)
        return HttpResponse(response.status, _parse_document(text))

    def _connect(self) -> socket.socket:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise PowerError(f"{self.who} takes too long to answer.")
        host, port = self._parts.hostname or "", _get_port(self._parts)
        try:
            return socket.create_connection((host, port), timeout=min(left_s, _CONNECT_S))
        except (OSError, UnicodeError) as error:
            raise PowerError(
                f"{self.who} cannot be reached: {_format_error(error)}. See that it is up and that"
                " the management network is reached from here."
            ) from None

    def _encrypt(self, plain: socket.socket) -> socket.socket:
        plain.settimeout(max(0.01, self._deadline - time.monotonic()))
        if self._parts.scheme == "http":
            return plain
        try:
            wrapped = self._build_tls_context().wrap_socket(
                plain, server_hostname=self._parts.hostname
            )
        except ssl.SSLCertVerificationError as error:
            raise PowerRefusal(
                f"{self.who}: its certificate is not trusted ({error.verify_message}). Give ca_file"
                " in [group.bmc], or say verify = false there."
            ) from None
        return wrapped

    def _build_tls_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._access.ca_file or None)
        except OSError as error:
            raise PowerRefusal(
                f"{self._access.ca_file} of [group.bmc] cannot be read: {_format_error(error)}"
            ) from None
        if not self._access.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _build_headers(self, body: bytes | None) -> dict[str, str]:
        pair = base64.b64encode(f"{self._access.user}:{self._access.password}".encode()).decode(
            "ascii"
        )
        # Basic, and no session: controllers keep few of those, and one that a killed worker left
        # stays for minutes.
        shown = {
            "Authorization": f"Basic {pair}",
            "Accept": "application/json",
            "OData-Version": "4.0",
        }
        sent = {"Content-Type": "application/json"} if body is not None else {}
        return {
            **shown,
            **sent,
            "Accept-Encoding": "identity",
            "Connection": "close",
            "User-Agent": "kintsugi",
        }

    def _build_login_refusal(self, status: int) -> PowerRefusal:
        user = self._access.user
        if status == 401:
            return PowerRefusal(
                f"{self.who} does not let {user} in (HTTP 401): correct user and password of its"
                " [group.bmc]."
            )
        return PowerRefusal(
            f"{self.who} does not allow it to {user} (HTTP 403): give the user the role Operator"
            " there."
        )


def _parse_address(who: str, address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        is_well = parts.scheme in _PORTS and bool(parts.hostname) and (parts.port or 1) > 0
        is_bare = parts.path in ("", "/") and not parts.query and parts.username is None
    except ValueError:
        is_well = is_bare = False
    if not is_well or not is_bare or any(ord(sign) <= 32 or ord(sign) >= 127 for sign in address):
        raise PowerRefusal(
            f"{who}: expected an address such as 10.0.9.1 or https://bmc-gn001, without path or"
            " password"
        )
    return parts


def _get_port(parts: SplitResult) -> int:
    return parts.port or _PORTS[parts.scheme]


@contextlib.contextmanager
def _cut_at(sock: socket.socket, deadline: float) -> Iterator[None]:
    """Cuts the connection at the deadline: a socket's own limit starts anew with every byte that
    trickles in."""
    duplicate = sock.dup()  # TLS takes the socket over; its duplicate is the same connection
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), _cut, (duplicate,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        duplicate.close()


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _parse_document(text: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _format_error(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:_SHOWN] or "no reason was given"
