"""One appliance on its host: made so that it can be made again at any point, and taken away whole.

A file is checked by its program before it replaces the one in force, so a bad one changes nothing. What is in force is marked
beside the file after its program has been told; a crash in between has it told again, which costs nothing.
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

from calabash.model.errors import CalabashError, Reason
from calabash.model.network import vpc_of
from calabash.net.appliances.model import Appliance, ApplianceLeg, ApplianceProgram
from calabash.netd.appliances import processes
from calabash.netd.appliances.processes import InNamespace
from calabash.netd.appliances.tools import ApplianceTools
from calabash.seams.links import interfaces, namespaces
from calabash.seams.links.interfaces import LinkEnd, LinkSettings

START_AGAIN_S = 2.0
PASS_S = 10.0
_IN_FORCE = ".in-force"
_ENDS_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliancePlace:
    """Where an appliance is on its host.

    Args:
        namespace: name of its own; ``host`` the one that the switch is in, None this process's.
        directory: its files, private.
    """

    namespace: str
    host: Path | None
    directory: Path

    @property
    def path(self) -> Path:
        return namespaces.path_of(self.namespace)

    def plug(self, leg: ApplianceLeg) -> LinkEnd:
        """The end of a leg that is the switch's: at most 15 letters."""
        digest = hashlib.sha256(f"{self.namespace}/{leg.device}".encode()).hexdigest()
        return LinkEnd(namespace=self.host, name=f"cx{digest[:12]}")


class ApplianceKeeper:
    """Keeps one appliance; ``keep`` is called again and again.

    Args:
        plug: makes a device the switch's port of that name, and says whether packets pass there.
        secret: the certificate with its key of ``VPC/NAME``, None where there is none.
    """

    def __init__(
        self,
        place: AppliancePlace,
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

    def keep(self, appliance: Appliance, running: Sequence[InNamespace]) -> None:
        """Makes what is missing and changes what differs. Raises CalabashError, OSError; what runs is left running then."""
        self._children = [child for child in self._children if child.poll() is None]
        fresh = not namespaces.exists(self.place.namespace)
        if fresh:
            shutil.rmtree(self.place.directory, ignore_errors=True)
            namespaces.create(self.place.namespace)
        self.place.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if fresh or not self._in_force("network", _digest(repr((appliance.legs, appliance.settings)))):
            self._make_network(appliance)
        passes, unplugged = self._plugged(appliance)
        secrets = self._put_secrets(appliance)
        for name in appliance.scripts:
            _write(self.place.directory / name, appliance.files[name].encode(), mode=0o700)
        if appliance.ruleset:
            self._load_rules(appliance)
        for program in appliance.programs:
            if passes or not program.waits or not self._waits(fresh):
                self._keep_program(program, appliance.files[program.file], secrets, running)
        if unplugged is not None:
            raise unplugged

    def _plugged(self, appliance: Appliance) -> tuple[bool, CalabashError | None]:
        """Whether packets pass at all legs, and why one could not be plugged: a switch that is away keeps no program from
        its new configuration."""
        passes, failure = True, None
        for leg in appliance.legs:
            try:
                passes = self._plug(self.place.plug(leg).name, leg.port) and passes
            except CalabashError as error:
                passes, failure = False, error
        return passes, failure

    def _waits(self, fresh: bool) -> bool:
        """Whether what waits for packets goes on waiting: some seconds from when the place was made."""
        now_s = time.monotonic()
        if fresh:
            self._made_s = now_s
        return now_s - self._made_s < PASS_S

    def end(self, running: Sequence[InNamespace]) -> None:
        """Takes processes, interfaces and files away; the ports of the switch are its keeper's."""
        inode, left = processes.inode_of(self.place.path), list(running)
        for _ in range(
            _ENDS_MAX
        ):  # a program that began after it was looked would keep the namespace and its interfaces
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
        for leg in appliance.legs:
            outer, inner = self.place.plug(leg), LinkEnd(namespace=self.place.path, name=leg.device)
            interfaces.join(inner, outer)
            settings = LinkSettings(mac=leg.mac, mtu_bytes=leg.mtu_bytes, addresses=leg.addresses, routes=leg.routes)
            interfaces.set_up(inner, settings)
            interfaces.set_up(outer)
        namespaces.inside(self.place.path, lambda: _set_kernel(appliance))
        self._mark("network", _digest(repr((appliance.legs, appliance.settings))))

    def _put_secrets(self, appliance: Appliance) -> str:
        """Puts certificates beside the files; what they are, as a digest."""
        digests = []
        for name in appliance.secrets:
            content = self._secret(f"{vpc_of(appliance.item)}/{name}")
            if content is None:
                raise CalabashError(
                    f"{appliance.item}: its VPC has no certificate {name}",
                    reason=Reason.NOT_FOUND,
                    hint=f"calabash certificate put {vpc_of(appliance.item)}/{name} --cert FILE --key FILE",
                )
            _write(self.place.directory / f"{name}.pem", content)
            digests.append(hashlib.sha256(content).hexdigest())
        return " ".join(digests)

    def _load_rules(self, appliance: Appliance) -> None:
        text = appliance.files[appliance.ruleset]
        if self._in_force(appliance.ruleset, _digest(text)):
            return
        file = self.place.directory / appliance.ruleset
        _write(file, text.encode())
        code, said = processes.run(self.place.path, [*self._tools.command("nft"), "-f", str(file)])
        if code != 0:
            raise CalabashError(f"{appliance.item}: nft refuses its rules: {said}", reason=Reason.UNSUPPORTED)
        self._mark(appliance.ruleset, _digest(text))

    def _keep_program(self, program: ApplianceProgram, text: str, secrets: str, running: Sequence[InNamespace]) -> None:
        file = self.place.directory / program.file
        pid = processes.main_process(running, str(file))
        digest = _digest(text + secrets)
        if pid and self._in_force(program.file, digest):
            return
        self._check_and_write(program, text, file)
        if pid and program.reload:
            processes.tell(pid, signal.Signals[f"SIG{program.reload}"])
        else:
            own = [process.pid for process in running if str(file) in process.words]
            self._start(program, own)
        self._mark(program.file, digest)

    def _check_and_write(self, program: ApplianceProgram, text: str, file: Path) -> None:
        if program.check:
            trial = file.with_suffix(".trial")
            _write(trial, text.encode())
            arguments = [str(trial) if word == str(file) else word for word in program.check]
            code, said = processes.run(self.place.path, [*self._tools.command(program.name), *arguments])
            trial.unlink(missing_ok=True)
            if code != 0:
                raise CalabashError(f"{program.name} refuses its configuration: {said}", reason=Reason.BAD_REQUEST)
        _write(file, text.encode())

    def _start(self, program: ApplianceProgram, before: Sequence[int]) -> None:
        now_s = time.monotonic()
        if now_s - self._started_s.get(program.name, -START_AGAIN_S) < START_AGAIN_S:
            raise CalabashError(f"{program.name} ended within {START_AGAIN_S:g} s", reason=Reason.UNREACHABLE)
        processes.end(before)
        for name in program.leaves:
            (self.place.directory / name).unlink(missing_ok=True)
        command = [*self._tools.command(program.name), *program.arguments]
        log = self.place.directory / f"{program.name}.log"
        self._children.append(processes.start(self.place.path, command, log))
        self._started_s[program.name] = now_s

    def _in_force(self, name: str, digest: str) -> bool:
        with contextlib.suppress(OSError):
            said = (self.place.directory / f"{name}{_IN_FORCE}").read_text()
            return said == f"{digest} {processes.inode_of(self.place.path)}"
        return False

    def _mark(self, name: str, digest: str) -> None:
        text = f"{digest} {processes.inode_of(self.place.path)}"
        _write(self.place.directory / f"{name}{_IN_FORCE}", text.encode())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _write(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replaces a private file in one step; one that is so already is left."""
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
