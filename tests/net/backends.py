"""Two programs with ports behind a layer 4 balancer, which open and close their listeners on command, and a client."""

from __future__ import annotations

import os
import shutil
import socket
import time
from typing import Any

from tests.daemons.behind import ForkedCaller
from tests.net.flows import Background
from tests.net.networked import Networked
from tests.net.station_sockets import asked

from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.station import Station

VIP, NUMBER = "10.0.1.100", 80
BACKENDS = ("red/a/web1", "red/a/web2")
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or ""

# Serves until it reads "close": then it closes its listener and keeps its connections; "open" listens again.
SERVER = """
import os, socket, sys, threading
def talk(client, name):
    client.sendall(name)
    while data := client.recv(100):
        client.sendall(data)
def serve(listening, name):
    while True:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=talk, args=(client, name), daemon=True).start()
name = sys.argv[1].encode()
while True:
    listening = socket.create_server(('', 8100), backlog=128)
    threading.Thread(target=serve, args=(listening, name), daemon=True).start()
    print('open', flush=True)
    word = sys.stdin.readline()
    if not word:
        sys.exit()
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    print('closed', flush=True)
    if not sys.stdin.readline():
        sys.exit()
"""


class Calling(Background):
    """Thread that connects to the balancer again and again while its context is entered, and records start and outcome."""

    def __init__(self, station: Station) -> None:
        super().__init__()
        self._station = station
        self.outcomes: list[tuple[float, str]] = []

    def _run(self) -> None:
        while not self._stopped.is_set():
            begun_s = time.monotonic()
            self.outcomes.append((begun_s, self._call()))
            self._stopped.wait(0.005)

    def _call(self) -> str:
        with self._station.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
            one.settimeout(2)
            try:
                one.connect((VIP, NUMBER))
                return one.recv(100).decode()
            except ConnectionRefusedError:
                return "refused"
            except OSError as error:
                return f"failed: {error}"

    def since(self, moment_s: float) -> list[tuple[float, str]]:
        """Return the outcomes of connections that began after the moment, with their seconds from it."""
        return [(begun - moment_s, outcome) for begun, outcome in list(self.outcomes) if begun > moment_s]

    def count_since(self, moment_s: float, wanted: str) -> int:
        return sum(outcome == wanted for _, outcome in self.since(moment_s))


class Balanced:
    """A pool whose balancer ``red/web`` has two backends on host h1, and a client on h2.

    Args:
        check_s: interval of OVN's health checks; two failures make a backend unhealthy.
    """

    def __init__(self, lab: Lab, *, check_s: float) -> None:
        self.networked = Networked(lab)
        backends = [{"port": port, "number": 8100} for port in BACKENDS]
        self.networked.put("port", "red/a/client", addresses=["10.0.1.21"])
        check = {"kind": "tcp", "interval_s": check_s, "failures": 2}
        self.networked.put("lb", "red/web", vip=VIP, vip_number=NUMBER, backends=backends, check=check)
        found: Any = self.networked.world.client.get("/v1/networks/objects/port?name=red/a/client")
        self.client = lab.station("h2", "red/a/client", found["spec"]["mac"], ["10.0.1.21/24"], ["10.0.1.1"])
        self.servers = {port: self.networked.run(PYTHON, "-c", SERVER, port, ports=[port]) for port in BACKENDS}
        for server in self.servers.values():
            assert server.says() == "open"

    def both_answer(self) -> bool:
        return {asked(self.client, VIP, NUMBER, timeout_s=2) for _ in range(12)} == set(BACKENDS)

    def close(self) -> None:
        self.client.remove()
        self.networked.close()


def send_command(server: ForkedCaller, word: str, answer: str) -> None:
    """Send a command to a server and return when the server has confirmed it."""
    os.write(server.stdin, f"{word}\n".encode())
    assert server.says() == answer
