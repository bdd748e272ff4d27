"""Management of one replica on its host: its namespace, interfaces, files and programs.

Every step can be repeated, so a controller that was killed leaves no state that the next one cannot repair. A program
checks a new configuration file before the file replaces the current one, so an invalid file changes nothing. After the
program was told to load the file, a digest of the file is written beside it. If the controller is killed before, the
next one finds no matching digest and tells the program again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.links import interfaces, namespaces
from calabash.adapters.links.interfaces import LinkEnd, LinkSettings
from calabash.controllers.appliances import processes
from calabash.controllers.appliances.processes import InNamespace
from calabash.controllers.appliances.programs import ApplianceTools
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import vpc_of
from calabash.net.appliances.model import Appliance, ApplianceInterface, ApplianceProgram

RESTART_PAUSE_S = 2.0
PASS_S = 10.0
_ACTIVE_SUFFIX = ".in-force"
_ENDS_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlace:
    """Location of a replica on its host.

    Args:
        namespace: name of the replica's network namespace.
        host: network namespace of the host's switch; None: that of this process.
        directory: directory of the replica's private files.
    """

    namespace: str
    host: Path | None
    directory: Path

    @property
    def path(self) -> Path:
        return namespaces.path_of(self.namespace)

    def plug(self, interface: ApplianceInterface) -> LinkEnd:
        """Return the device on the host's switch that is connected to an interface of the replica.

        The name of the device is a digest, because names of network devices have at most 15 characters.
        """
        digest = hashlib.sha256(f"{self.namespace}/{interface.device}".encode()).hexdigest()
        return LinkEnd(namespace=self.host, name=f"cx{digest[:12]}")


class ReplicaManager:
    """Manager of one replica. ``reconcile`` is called repeatedly.

    Args:
        place: namespace and directory of the replica.
        tools: locations of the programs.
        plug: given a network device and a logical port, connects the device to the switch as this port; returns True if
            packets pass there.
        secret: given a certificate's name ``VPC/NAME``, returns certificate and key as PEM; None if there is none.
    """

    def __init__(
        self,
        place: ReplicaPlace,
        *,
        tools: ApplianceTools,
        plug: Callable[[str, str], bool],
        secret: Callable[[str], bytes | None],
    ) -> None:
        self.place = place
        self._tools = tools
        self._plug = plug
        self._secret = secret
        self._children: list[subprocess.Popen[bytes]] = []
        self._started_s: dict[str, float] = {}
        self._made_s = float("-inf")

    def reconcile(self, appliance: Appliance, running: Sequence[InNamespace]) -> None:
        """Create the parts of the replica that are missing, and change those that differ from ``appliance``.

        Args:
            appliance: desired interfaces, files and programs.
            running: processes in the replica's namespace.

        Raises:
            CalabashError, OSError: the replica cannot be completed; its running programs continue.
        """
        self._children = [child for child in self._children if child.poll() is None]
        fresh = not namespaces.exists(self.place.namespace)
        if fresh:
            shutil.rmtree(self.place.directory, ignore_errors=True)
            namespaces.create(self.place.namespace)
        self.place.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if fresh or not self._is_active("network", _digest(repr((appliance.interfaces, appliance.settings)))):
            self._make_network(appliance)
        passes, unplugged = self._plug_interfaces(appliance)
        secrets = self._put_secrets(appliance)
        for name in appliance.scripts:
            _write(self.place.directory / name, appliance.files[name].encode(), mode=0o700)
        if appliance.ruleset:
            self._load_rules(appliance)
        for program in appliance.programs:
            if passes or not program.waits or not self._is_waiting(fresh):
                self._reconcile_program(program, appliance.files[program.file], secrets, running)
        if unplugged is not None:
            raise unplugged

    def _plug_interfaces(self, appliance: Appliance) -> tuple[bool, CalabashError | None]:
        """Connect all interfaces to the switch; return whether packets pass at all of them, and the last error or None.

        An error is returned instead of raised, so that programs get a new configuration even if the switch is
        unreachable.
        """
        passes, failure = True, None
        for interface in appliance.interfaces:
            try:
                passes = self._plug(self.place.plug(interface).name, interface.port) and passes
            except CalabashError as error:
                passes, failure = False, error
        return passes, failure

    def _is_waiting(self, fresh: bool) -> bool:
        """Return True in the first PASS_S seconds after this manager has created the namespace.

        In this time, programs whose ``waits`` is True are not started before packets pass at the interfaces.

        Args:
            fresh: True if the namespace was created just now.
        """
        now_s = time.monotonic()
        if fresh:
            self._made_s = now_s
        return now_s - self._made_s < PASS_S

    def remove(self, running: Sequence[InNamespace]) -> None:
        """End the processes in ``running``; remove the namespace and files. The caller removes the switch ports."""
        inode, left = processes.inode_of(self.place.path), list(running)
        for _ in range(_ENDS_MAX):  # repeated, because a program that was just started would keep the namespace
            processes.end([process.pid for process in left])
            left = processes.by_namespace().get(inode, []) if inode else []
            if not left:
                break
        for child in self._children:
            child.wait()
        self._children = []
        namespaces.remove(self.place.namespace)
        shutil.rmtree(self.place.directory, ignore_errors=True)

    def _make_network(self, appliance: Appliance) -> None:
        for interface in appliance.interfaces:
            outer, inner = self.place.plug(interface), LinkEnd(namespace=self.place.path, name=interface.device)
            interfaces.join(inner, outer)
            settings = LinkSettings(
                mac=interface.mac,
                mtu_bytes=interface.mtu_bytes,
                addresses=interface.addresses,
                routes=interface.routes,
            )
            interfaces.set_up(inner, settings)
            interfaces.set_up(outer)
        namespaces.inside(self.place.path, lambda: _set_kernel(appliance))
        self._mark("network", _digest(repr((appliance.interfaces, appliance.settings))))

    def _put_secrets(self, appliance: Appliance) -> str:
        """Write the certificates of the replica beside its files; return their digests, to detect changes."""
        digests = []
        for name in appliance.secrets:
            content = self._secret(f"{vpc_of(appliance.item)}/{name}")
            if content is None:
                raise CalabashError(
                    f"{appliance.item}: the VPC has no certificate {name}",
                    reason=Reason.NOT_FOUND,
                    hint=f"calabash net certificate put {vpc_of(appliance.item)}/{name} --cert FILE --key FILE",
                )
            _write(self.place.directory / f"{name}.pem", content)
            digests.append(hashlib.sha256(content).hexdigest())
        return " ".join(digests)

    def _load_rules(self, appliance: Appliance) -> None:
        text = appliance.files[appliance.ruleset]
        if self._is_active(appliance.ruleset, _digest(text)):
            return
        file = self.place.directory / appliance.ruleset
        _write(file, text.encode())
        code, output = processes.run(self.place.path, [*self._tools.command("nft"), "-f", str(file)])
        if code != 0:
            raise CalabashError(f"{appliance.item}: nft refuses the rules: {output}", reason=Reason.UNSUPPORTED)
        self._mark(appliance.ruleset, _digest(text))

    def _reconcile_program(
        self, program: ApplianceProgram, text: str, secrets: str, running: Sequence[InNamespace]
    ) -> None:
        file = self.place.directory / program.file
        pid = processes.main_process(running, str(file))
        digest = _digest(text + secrets)
        if pid and self._is_active(program.file, digest):
            return
        self._check_and_write(program, text, file)
        if pid and program.reload:
            processes.send_signal(pid, signal.Signals[f"SIG{program.reload}"])
        else:
            own = [process.pid for process in running if str(file) in process.words]
            self._start(program, own)
        self._mark(program.file, digest)

    def _check_and_write(self, program: ApplianceProgram, text: str, file: Path) -> None:
        if program.check:
            trial = file.with_suffix(".trial")
            _write(trial, text.encode())
            arguments = [str(trial) if word == str(file) else word for word in program.check]
            code, output = processes.run(self.place.path, [*self._tools.command(program.name), *arguments])
            trial.unlink(missing_ok=True)
            if code != 0:
                raise CalabashError(f"{program.name} refuses its configuration: {output}", reason=Reason.BAD_REQUEST)
        _write(file, text.encode())

    def _start(self, program: ApplianceProgram, before: Sequence[int]) -> None:
        now_s = time.monotonic()
        if now_s - self._started_s.get(program.name, -RESTART_PAUSE_S) < RESTART_PAUSE_S:
            raise CalabashError(
                f"{program.name} ended less than {RESTART_PAUSE_S:g} s after its start", reason=Reason.UNREACHABLE
            )
        processes.end(before)
        for name in program.leaves:
            (self.place.directory / name).unlink(missing_ok=True)
        command = [*self._tools.command(program.name), *program.arguments]
        log = self.place.directory / f"{program.name}.log"
        self._children.append(processes.start(self.place.path, command, log))
        self._started_s[program.name] = now_s

    def _is_active(self, name: str, digest: str) -> bool:
        with contextlib.suppress(OSError):
            said = (self.place.directory / f"{name}{_ACTIVE_SUFFIX}").read_text()
            return said == f"{digest} {processes.inode_of(self.place.path)}"
        return False

    def _mark(self, name: str, digest: str) -> None:
        text = f"{digest} {processes.inode_of(self.place.path)}"
        _write(self.place.directory / f"{name}{_ACTIVE_SUFFIX}", text.encode())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _write(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a private file atomically unless it has this content."""
    with contextlib.suppress(OSError):
        if path.read_bytes() == content:
            return
    fresh = path.with_name(f".{path.name}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    fresh.replace(path)


def _set_kernel(appliance: Appliance) -> None:
    for name, value in appliance.settings.items():
        Path("/proc/sys", name).write_text(value)
