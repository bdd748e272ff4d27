"""Simulated UFM server with its P_Key API, rules and faults, for tests and to try ``fabric.toml``.

Run it with ``python -I -m calabash_testing.fabric.ufm --port 8080``. It stores P_Keys 0x1 to 0x7fff. The last one
exists from the start and contains every port as a limited member. A P_Key exists until it is deleted, also without ports.
``UfmFaults`` enables faults that were observed with real managers.
"""

from __future__ import annotations

import argparse
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from calabash.net.fabric_partitions import PKEY_DEFAULT

PKEY_MAX = 0x7FFF  # 15 bits; the 16th bit is the membership type

_GUID = re.compile(r"(0x)?[0-9a-fA-F]{16}")
_ONE = re.compile(r"/ufmRest(?:V3)?/resources/pkeys/(0x[0-9a-fA-F]+)(?:/guids/([^?/]+))?")
BODY_BYTES_MAX = 1 << 20


@dataclass(kw_only=True)
class UfmFaults:
    """Faults, active until they are reset.

    Args:
        status: reply to every request with this status.
        hang: reply to no request until the event is set.
        garbage: reply with an HTML page.
        lose: confirm orders without carrying them out.
        half: carry out orders for every other port only.
        forget_answer: carry out orders and close the connection without a reply.
        nameless: do not store partition names.
    """

    status: int = 0
    hang: threading.Event | None = None
    garbage: bool = False
    lose: bool = False
    half: bool = False
    forget_answer: bool = False
    nameless: bool = False


@dataclass
class SimulatedPkeys:
    """State of the manager: names and members by P_Key, guarded by ``lock``."""

    faults: UfmFaults = field(default_factory=UfmFaults)
    names: dict[int, str] = field(default_factory=lambda: {PKEY_DEFAULT: "management"})
    members: dict[int, dict[str, str]] = field(default_factory=lambda: {PKEY_DEFAULT: {}})
    lock: threading.RLock = field(default_factory=threading.RLock)

    def listed(self) -> dict[str, Any]:
        """Return the reply to a request for all P_Keys."""
        with self.lock:
            return {
                hex(number): {
                    "partition": name,
                    "ip_over_ib": True,
                    "guids": [
                        {"guid": guid, "membership": kind, "index0": False}
                        for guid, kind in sorted(self.members[number].items())
                    ],
                }
                for number, name in sorted(self.names.items())
            }

    def create(self, body: dict[str, Any]) -> int:
        """Create a P_Key; return the HTTP status."""
        number = _number(body.get("pkey"))
        if number is None:
            return 400
        with self.lock:
            if number in self.names:
                return 400
            name = body.get("partition_name")
            self.names[number] = name if isinstance(name, str) and not self.faults.nameless else f"api_pkey_{number:#x}"
            self.members[number] = {}
        return 201

    def add(self, body: dict[str, Any]) -> int:
        """Add ports; return the HTTP status. A missing P_Key is created, as by UFM."""
        number, guids = _number(body.get("pkey")), body.get("guids")
        kind = body.get("membership", "full")
        if number is None or not isinstance(guids, list) or not guids or kind not in {"full", "limited"}:
            return 400
        if not all(isinstance(guid, str) and _GUID.fullmatch(guid) for guid in guids):
            return 400
        with self.lock:
            self.names.setdefault(number, f"api_pkey_{number:#x}")
            for guid in self._some(guids):
                self.members.setdefault(number, {})[guid.lower().removeprefix("0x")] = kind
        return 200

    def remove(self, number: int, guids: list[str] | None) -> int:
        """Remove ports of a P_Key, or the P_Key if ``guids`` is None; return the HTTP status."""
        with self.lock:
            if number not in self.names:
                return 404
            if guids is None:
                if number == PKEY_DEFAULT:
                    return 400
                del self.names[number], self.members[number]
                return 200
            for guid in self._some(guids):
                self.members[number].pop(guid.lower().removeprefix("0x"), None)
        return 200

    def _some(self, guids: list[str]) -> list[str]:
        return guids[::2] if self.faults.half else guids


class SimulatedUfm:
    """Server on a loopback port of this machine. The context manager starts and stops it."""

    def __init__(self, *, port: int = 0, authorization: str = "") -> None:
        self.pkeys = SimulatedPkeys()
        self.asked: list[str] = []
        handler = type("Handler", (_Handler,), {"ufm": self, "authorization": authorization})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.pkeys.faults.hang is not None:
            self.pkeys.faults.hang.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    ufm: SimulatedUfm
    authorization: str

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Log nothing; requests are recorded in ``asked``."""

    def _answer(self, method: str) -> None:
        faults = self.ufm.pkeys.faults
        length = min(int(self.headers.get("Content-Length") or 0), BODY_BYTES_MAX)
        content = self.rfile.read(length)
        self.ufm.asked.append(f"{method} {self.path}")
        if faults.hang is not None:
            faults.hang.wait()
            return
        if self.authorization and self.headers.get("Authorization") != self.authorization:
            self._send(401, {})
        elif faults.status:
            self._send(faults.status, {})
        elif method == "GET":
            self._send(200, None if faults.garbage else self.ufm.pkeys.listed())
        elif faults.lose:
            self._send(200, {})
        else:
            status = self._ordered(method, content)
            if faults.forget_answer:
                self.close_connection = True
                return
            self._send(status, {})

    def _ordered(self, method: str, content: bytes) -> int:
        path = self.path.partition("?")[0]
        if method == "POST":
            try:
                body = json.loads(content)
            except ValueError:
                return 400
            if not isinstance(body, dict):
                return 400
            return self.ufm.pkeys.create(body) if path.endswith("/pkeys/add") else self.ufm.pkeys.add(body)
        found = _ONE.fullmatch(path)
        if found is None:
            return 404
        return self.ufm.pkeys.remove(int(found[1], 16), found[2].split(",") if found[2] else None)

    def _send(self, status: int, body: dict[str, Any] | None) -> None:
        content = b"<html>please log in</html>" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _number(text: object) -> int | None:
    try:
        number = int(str(text), 16)
    except ValueError:
        return None
    return number if 1 <= number <= PKEY_MAX else None


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -I -m calabash_testing.fabric.ufm")
    parser.add_argument("--port", type=int, default=8080)
    with SimulatedUfm(port=parser.parse_args().port) as ufm:
        print(f"simulated UFM at {ufm.url}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
