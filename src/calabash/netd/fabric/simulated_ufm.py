"""A UFM that is a process of ours: its routes for P_Keys, its rules and its mistakes. For tests, and to try ``fabric.toml``:
``python -I -m calabash.netd.fabric.simulated_ufm --port 8080``.

It keeps P_Keys 0x1 to 0x7fff, of which the last is there from the beginning with every port as a limited member; a P_Key ends
with its last port only when it is deleted. ``UfmFaults`` has it answer wrongly in the ways that were seen of managers.
"""

from __future__ import annotations

import argparse
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from calabash.net.fabric_partitions import PKEY_DEFAULT, PKEY_MAX

_GUID = re.compile(r"(0x)?[0-9a-fA-F]{16}")
_ONE = re.compile(r"/ufmRest(?:V3)?/resources/pkeys/(0x[0-9a-fA-F]+)(?:/guids/([^?/]+))?")
BODY_BYTES_MAX = 1 << 20


@dataclass(kw_only=True)
class UfmFaults:
    """What goes wrong, until it is set back: ``status`` answers everything with it; ``hang``: no answer until it is set;
    ``garbage``: a page for people; ``lose``: orders are answered and not carried out; ``half``: only every other port of an
    order is; ``forget_answer``: orders are carried out and the line is cut; ``nameless``: names are not kept."""

    status: int = 0
    hang: threading.Event | None = None
    garbage: bool = False
    lose: bool = False
    half: bool = False
    forget_answer: bool = False
    nameless: bool = False


@dataclass
class SimulatedPkeys:
    """The manager's state: name and members by P_Key; safe under ``lock``."""

    faults: UfmFaults = field(default_factory=UfmFaults)
    names: dict[int, str] = field(default_factory=lambda: {PKEY_DEFAULT: "management"})
    members: dict[int, dict[str, str]] = field(default_factory=lambda: {PKEY_DEFAULT: {}})
    lock: threading.RLock = field(default_factory=threading.RLock)

    def listed(self) -> dict[str, Any]:
        """As it is answered to who asks for all."""
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
        """The status that answers."""
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
        """The same; a P_Key that is not there is made, as the real one does."""
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
        """Ports of a P_Key, or all of it."""
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
    """The server, on a port of this machine's own loopback; ``with`` starts and ends it."""

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
        """Nothing: what was asked is in ``asked``."""

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
    """Serve until it is ended."""
    parser = argparse.ArgumentParser(prog="python -I -m calabash.netd.fabric.simulated_ufm")
    parser.add_argument("--port", type=int, default=8080)
    with SimulatedUfm(port=parser.parse_args().port) as ufm:
        print(f"a simulated UFM is at {ufm.url}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
