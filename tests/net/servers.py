"""OVSDB servers without switches and without root: a single one, a cluster of three, and their command-line clients."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from tests.daemons.world import until
from tests.net import needs

from calabash.controllers.lab import programs
from calabash.controllers.lab.certificates import AUTHORITY

SCHEMAS = {"OVN_Northbound": "nb", "OVN_Southbound": "sb", "Open_vSwitch": "vswitch"}


def ovn_programs() -> programs.OvnPrograms:
    """Return OVN's programs; skip the test if they are not installed."""
    needs.need(packets=False)
    return programs.get()


def _accepts(path: Path) -> bool:
    """Return True if a process listens on the Unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


class DatabaseServer:
    """One ovsdb-server with one database in ``directory``; it can be started again at the same place."""

    def __init__(
        self, directory: Path, database: str = "OVN_Northbound", *, file: str = "data.db", keys: Path | None = None
    ) -> None:
        """Create the database. ``keys``: accept TLS connections too, with certificates of a ``LabAuthority``."""
        self.keys = keys
        self.directory, self.database = directory, database
        self.programs = ovn_programs()
        self.file = directory / file
        self.socket = directory / "db.sock"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def remote(self) -> str:
        return f"unix:{self.socket}"

    def create(self) -> None:
        schema = self.programs.schema(SCHEMAS[self.database])
        self.tool("create", str(self.file), str(schema))

    def start(self) -> None:
        """Start the server and return when it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self.file.exists():
            self.create()
        control = self.directory / "ctl"
        self.socket.unlink(missing_ok=True)
        control.unlink(missing_ok=True)
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.programs.command("ovsdb-server"),
                    f"--remote=punix:{self.socket}",
                    f"--unixctl={self.directory}/ctl",
                    "--no-chdir",
                    *self._tls(),
                    str(self.file),
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        until(lambda: _accepts(self.socket) and _accepts(control), what="the server to listen")

    def _tls(self) -> tuple[str, ...]:
        if self.keys is None:
            return ()
        return (
            f"--remote=db:{self.database},{'NB' if self.database == 'OVN_Northbound' else 'SB'}_Global,connections",
            f"--private-key={self.keys / 'key.pem'}",
            f"--certificate={self.keys / 'certificate.pem'}",
            f"--ca-cert={self.keys / AUTHORITY}",
            f"--log-file={self.directory / 'tls.log'}",
        )

    def listen(self, *, role: str = "") -> str:
        """Listen by TLS at a free port for clients of that role; return the remote to connect to."""
        self.ctl("init")
        self.ctl("set-connection", *((f"role={role}",) if role else ()), "pssl:0:127.0.0.1")
        found: list[str] = []

        def listening() -> bool:
            found[:] = re.findall(r"listening on port (\d+)", (self.directory / "tls.log").read_text())
            return bool(found)

        until(listening)
        return f"ssl:127.0.0.1:{found[-1]}"

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(number)
            process.wait(60)

    def tool(self, *words: str) -> str:
        return self._run("ovsdb-tool", *words)

    def control(self, *words: str) -> str:
        return self._run("ovs-appctl", "-t", f"{self.directory}/ctl", *words)

    def ctl(self, *words: str) -> str:
        """Run ovn-nbctl or ovs-vsctl, as another client than the product, and return the output."""
        program = {"OVN_Northbound": "ovn-nbctl", "OVN_Southbound": "ovn-sbctl", "Open_vSwitch": "ovs-vsctl"}
        return self._run(program[self.database], "--timeout=60", f"--db={self.remote}", *words)

    def backup(self, to: Path) -> None:
        """Copy the database as administrators do."""
        to.write_bytes(self._run("ovsdb-client", "--timeout=60", "backup", self.remote, self.database).encode())

    def rows(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """Return the rows that ovsdb-client finds."""
        question = [self.database, {"op": "select", "table": table, "where": [], "columns": list(columns)}]
        told = self._run("ovsdb-client", "--timeout=60", "query", self.remote, json.dumps(question))
        return list(json.loads(told)[0]["rows"])

    def _run(self, name: str, *words: str) -> str:
        done = subprocess.run(
            [*self.programs.command(name), *words], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{name} {words}: {done.stderr}"
        return done.stdout


class ClusterServer(DatabaseServer):
    """A server of a cluster; the first creates it, others join. It listens on loopback at a free port."""

    def __init__(self, directory: Path, *, address: str, joins: str = "") -> None:
        super().__init__(directory)
        self.address, self._joins = address, joins

    def create(self) -> None:
        schema = str(self.programs.schema("nb"))
        if self._joins:
            self.tool("join-cluster", str(self.file), self.database, self.address, self._joins)
        else:
            self.tool("create-cluster", str(self.file), schema, self.address)

    def status(self) -> str:
        return self.control("cluster/status", self.database)

    def leads(self) -> bool:
        return self.process is not None and "Role: leader" in self.status()

    def member(self) -> bool:
        return "Status: cluster member" in self.status()
