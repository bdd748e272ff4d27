"""The host of one allocation: the process that listens for its tenant's programs and starts a worker for each.

It outlives its pool, as the programs of other slices do. Its directory has the socket, which only the tenant and ourselves
may connect to, the pipe of its log, and an empty directory that becomes its root.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from calabash.adapters.gpu.library import remote_library_dir
from calabash.adapters.host.bubblewrap import Enclosure
from calabash.adapters.host.children import start_program
from calabash.adapters.host.processes import Process, alive, children_of, identify, send_signal
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.node.modes.brokered.images import ImageFile
from calabash.node.modes.brokered.log import WorkerLog
from calabash.node.modes.brokered.users import WorkerUser

SOCKET_FILE = "worker.sock"
_BACKLOG = 256


class WorkerHost:
    """One host.

    Args:
        client: the process that asked for the allocation, None where it is not known.
        user: as whom it runs.
        standing: it is needed until the allocation is given back.
        name: that of its slot.
    """

    def __init__(
        self,
        allocation: AllocationId,
        directory: Path,
        *,
        client: Process | None,
        user: WorkerUser,
        standing: bool,
        name: str = "",
    ) -> None:
        self.allocation = allocation
        self.name = name
        self.client = client
        self.user = user.uid
        self._taken = user
        self.standing = standing
        self.process: Process | None = None
        self.used_ns = 0  # when it was last known to be needed
        self.ended = False  # by us, or it has been told
        self._directory = directory
        self._log = WorkerLog(directory / "log", allocation)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def door(self) -> Path:
        """Where programs connect."""
        return self._directory / SOCKET_FILE

    def start(
        self,
        enclosure: Enclosure,
        *,
        tenant: int,
        lease: Path | None,
        images: ImageFile | None,
        join: Callable[[Process], None],
    ) -> None:
        """Start it, a member of its allocation before it does anything. Raises CalabashError.

        Args:
            tenant: the user who may connect; -1: whoever is shown the socket, as in a container that it is mounted in.
            lease: where members are known by a lock on this file, which it then holds.
            images: where its workers keep images of code; None: nowhere.
            join: makes it a member.
        """
        worker, launcher = remote_library_dir() / "calabash-worker", remote_library_dir() / "calabash-enclose"
        with ExitStack() as stack:
            try:
                listener = stack.enter_context(self._listen(tenant))
                go, begin = os.pipe()
                stack.callback(os.close, go)
                stack.callback(os.close, begin)
                passed = [listener.fileno(), go]
                if lease is not None:
                    held = os.open(lease, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                    stack.callback(os.close, held)
                    fcntl.flock(held, fcntl.LOCK_SH)
                    passed.append(held)
                root = replace(enclosure, root=self._directory / "root") if enclosure.root else enclosure
                if self._taken.descriptor >= 0:
                    passed.append(self._taken.descriptor)
                if images is not None:
                    passed.append(images.descriptor)
                    root = replace(root, environment={**root.environment, **images.environment()})
                said = self._log.open()
                program = [str(worker), "--listen", str(listener.fileno())]
                if tenant >= 0:
                    program += ["--broker-uid", str(tenant)]  # who may connect may also hand connections on
                self._child = start_program(
                    root.words(launcher, program, go=go),
                    environment=root.variables(),
                    pass_fds=passed,
                    stdout=said,
                    stderr=said,
                    new_session=True,
                )
            except OSError as error:
                raise CalabashError(
                    f"the worker of {self.allocation} cannot be started: {error.strerror}",
                    reason=Reason.BAD_FILE,
                    hint="build it with: make native",
                ) from error
            self.process = identify(self._child.pid)
            if self.process is None:
                raise CalabashError(f"the worker of {self.allocation} ended at once", reason=Reason.CONFLICT)
            join(self.process)
            os.write(begin, b".")
            self._taken.close()  # the host holds the lock from now on

    def adopt(self, process: Process) -> None:
        """Take over what an earlier pool has started."""
        self.process = process
        try:
            self._log.open()
        except OSError:
            return  # it goes on without being heard

    def serves(self) -> bool:
        """Whether it has workers."""
        return self.process is not None and bool(children_of(self.process.pid))

    def listen_to(self) -> None:
        """Tell what it and its workers have said."""
        self._log.read()

    def found_dead(self) -> bool:
        """Whether it has ended though nobody has ended it; true once."""
        if self.process is None or self.ended or alive(self.process):
            return False
        self.ended = True
        return True

    def end(self) -> None:
        """End it; its workers end with it."""
        self.ended = True
        if self.process is not None:
            send_signal(self.process, signal.SIGKILL)

    def reap(self) -> bool:
        """Whether nothing of it is left that waits for us."""
        return self._child is None or self._child.poll() is not None

    def close(self, *, keep_directory: bool = False) -> None:
        """It is over: nothing of it remains on disk, unless its directory is already the next one's."""
        self.release()
        if not keep_directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def release(self) -> None:
        """The pool stops and it goes on."""
        self._taken.close()
        self._log.close()

    def _listen(self, tenant: int) -> socket.socket:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(mode=0o700)
        (self._directory / "root").mkdir(mode=0o755)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.bind(str(self.door))
            self.door.chmod(0o600 if tenant >= 0 else 0o666)
            if tenant >= 0 and tenant != os.geteuid():
                os.chown(self.door, tenant, -1)
            listener.listen(_BACKLOG)
            if tenant >= 0:
                self._directory.chmod(0o711)  # only now may anybody else come near
        except BaseException:
            listener.close()
            raise
        return listener
