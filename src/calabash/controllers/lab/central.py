"""Central part of a lab: northbound database, southbound database, and northd.

Local clients use Unix sockets, so they need access to the directory. Hosts connect to the southbound database by TLS.
Each host has its own certificate and the role ``ovn-controller``, which restricts what it may change.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from calabash.adapters.host.children import run_program
from calabash.controllers.lab.certificates import AUTHORITY
from calabash.controllers.lab.daemons import LabDaemon
from calabash.controllers.lab.programs import OvnPrograms
from calabash.model.errors import CalabashError, Reason

ADDRESS, SOUTHBOUND_PORT = "172.30.0.1", 6642
DAEMONS = ("nb", "sb", "northd")
_DATABASES = ("nb", "sb")
BFD = {
    "bfd-min-rx": 200,
    "bfd-min-tx": 200,
    "bfd-mult": 3,
}  # ms, ms, packets: the loss of a gateway is detected after 0.6 s
_CTL_S = 30


class LabCentral:
    """Daemons ``nb``, ``sb`` and ``northd`` of a lab.

    Args:
        directory: directory of the daemons' files.
        namespace: network namespace of the daemons; "" in a lab without namespaces.
        programs: locations of OVN's programs.
    """

    def __init__(self, *, directory: Path, namespace: str, programs: OvnPrograms) -> None:
        self.directory = directory
        self.namespace = namespace
        self.keys = directory / "keys"
        self._programs = programs

    @property
    def northbound(self) -> str:
        """Address of the northbound database for local clients, in OVN's format ("unix:PATH")."""
        return f"unix:{self.directory / 'nb.sock'}"

    @property
    def southbound(self) -> str:
        """Address of the southbound database for local clients, in OVN's format ("unix:PATH")."""
        return f"unix:{self.directory / 'sb.sock'}"

    def up(self) -> None:
        """Create missing databases and start daemons that are not running."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in _DATABASES:
            create_database(self._programs, self.directory / f"{name}.db", name)
        for name in DAEMONS:
            self.start(name)
        self.nbctl("--no-wait", "init", "--", "set", "NB_Global", ".", *(f"options:{k}={v}" for k, v in BFD.items()))
        if self.namespace:
            remote = f"pssl:{SOUTHBOUND_PORT}:{ADDRESS}"
            self.sbctl("init", "--", "set-connection", "role=ovn-controller", remote)

    def daemon(self, name: str) -> LabDaemon:
        """Return the daemon ``nb``, ``sb`` or ``northd``. Raises CalabashError (NOT_FOUND) for another name."""
        if name not in DAEMONS:
            raise CalabashError(
                f"central part has no daemon {name}: it has {', '.join(DAEMONS)}", reason=Reason.NOT_FOUND
            )
        program = "ovn-northd" if name == "northd" else "ovsdb-server"
        return LabDaemon(
            name=name,
            directory=self.directory,
            command=self._programs.command(program),
            arguments=self._arguments(name),
            namespace=self.namespace,
            environment=rundirs(self.directory),
        )

    def start(self, name: str) -> None:
        self.daemon(name).start()

    def stop(self, name: str) -> None:
        self.daemon(name).stop()

    def kill(self, name: str) -> None:
        self.daemon(name).kill()

    def nbctl(self, *words: str, timeout_s: float = _CTL_S) -> str:
        """Return the output of ``ovn-nbctl``. Raises CalabashError if it fails."""
        line = (*self._programs.command("ovn-nbctl"), f"--timeout={int(timeout_s)}", f"--db={self.northbound}", *words)
        return program_output(line)

    def sbctl(self, *words: str, timeout_s: float = _CTL_S) -> str:
        """Return the output of ``ovn-sbctl``. Raises CalabashError if it fails."""
        line = (*self._programs.command("ovn-sbctl"), f"--timeout={int(timeout_s)}", f"--db={self.southbound}", *words)
        return program_output(line)

    def _arguments(self, name: str) -> tuple[str, ...]:
        if name == "northd":
            return (f"--ovnnb-db={self.northbound}", f"--ovnsb-db={self.southbound}")
        arguments = [f"--remote=punix:{self.directory / name}.sock"]
        if name == "sb" and self.namespace:
            arguments += [
                "--remote=db:OVN_Southbound,SB_Global,connections",
                f"--private-key={self.keys / 'key.pem'}",
                f"--certificate={self.keys / 'certificate.pem'}",
                f"--ca-cert={self.keys / AUTHORITY}",
            ]
        return (*arguments, str(self.directory / f"{name}.db"))


def create_database(programs: OvnPrograms, path: Path, schema: str) -> None:
    """Create an empty database atomically, unless it exists. ``schema`` is a name for ``OvnPrograms.schema``."""
    if path.exists():
        return
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    program_output((*programs.command("ovsdb-tool"), "create", str(new), str(programs.schema(schema))))
    new.rename(path)


def rundirs(directory: Path) -> dict[str, str]:
    """Return environment variables that move the files of OVN and Open vSwitch programs to one directory."""
    return {f"{owner}_{kind}": str(directory) for owner in ("OVS", "OVN") for kind in ("RUNDIR", "LOGDIR", "DBDIR")}


def program_output(line: tuple[str, ...], timeout_s: float = 120) -> str:
    """Return the output of a program. Raises CalabashError with the first line of its output if it fails."""
    try:
        done = run_program(line, timeout_s=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise CalabashError(f"{_name(line)} did not end within {timeout_s:g} s", reason=Reason.TIMEOUT) from error
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip().splitlines()
        raise CalabashError(
            f"{_name(line)} ended with {done.returncode}: {output[0][:300] if output else 'no output'}",
            reason=Reason.API_DOWN,
            hint="`calabash net status` shows which daemons are running",
        )
    return done.stdout


def _name(line: tuple[str, ...]) -> str:
    return next((Path(word).name for word in line if Path(word).name.startswith(("ovs-", "ovn-", "ovsdb-"))), line[0])
