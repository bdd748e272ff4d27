"""Server that lends a pool's devices to other machines, and clients of it, each with a home of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from tests.daemons.terminal import Terminal
from tests.daemons.world import HANG_S, NATIVE, World, until

from calabash.model.errors import CalabashError

HELD = ("sh", "-c", "echo holding; exec cat")


class RemoteSite:
    """Server of remote devices for one pool. Its clients have homes of their own, as if they were on other machines."""

    def __init__(self, world: World, scratch: Path, *options: str) -> None:
        self.world = world
        self.scratch = scratch
        self.options = options
        self.owner = Terminal(world.home, scratch)
        self.pid = 0
        self.address = "127.0.0.1:0"
        self._clients: list[Terminal] = []

    def up(self) -> None:
        """Start the server, at the same port as before."""
        self.owner("remote", "server", "up", "--listen", self.address, "--name", "lab01", *self.options)
        self.address = (self.world.home / "server" / "address").read_text().strip()
        self.pid = self.owner.json("remote", "server", "status")["pid"]

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        pid, self.pid = self.pid, 0
        if pid:
            os.kill(pid, number)
            until(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not _words(pid), what="the server to end")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def token(self, name: str = "vision", *options: str) -> Path:
        """Create a token and return its file."""
        path = self.scratch / f"{name}{len(list(self.scratch.iterdir()))}.token"
        path.write_text(self.owner("remote", "server", "token", "create", name, *(options or ("--gpus", "4"))).stdout)
        path.chmod(0o600)
        return path

    def client(self, token: Path | None = None) -> Terminal:
        """Return the terminal of a client that knows the server."""
        home = self.scratch / f"client{len(self._clients)}"
        home.mkdir(parents=True)
        made = Terminal(home, home)
        made("remote", "add", self.address, "--token", str(token or self.token()))
        self._clients.append(made)
        return made

    def leases(self) -> list[dict[str, Any]]:
        """Return the allocations of the pool that are leases."""
        return [a for a in self.world.allocations() if a["mode"] == "brokered"]

    def clean(self) -> None:
        """End all programs, and wait until their devices are free."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        for lease in self.leases():
            with contextlib.suppress(CalabashError):  # it has just ended by itself
                self.world.client.delete(f"/v1/allocations/{lease['id']}?force=1")
        until(lambda: not self.world.allocations(), what="all leases to end")

    def run_late(self, lease_file: Path, *command: str) -> str:
        """Start a program that uses the lease file of an earlier program, whose lease has ended; return its output."""
        environment = self.owner.environment | {
            "CALABASH_REMOTE": f"file:{lease_file}",
            "LD_LIBRARY_PATH": str(NATIVE / "remote"),
        }
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        ).stdout

    def connect(self) -> socket.socket:
        """Open a connection to the port, on which nothing was sent yet."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.kill(signal.SIGTERM)
        self.owner.close()


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
