"""Worker host of one allocation: the process that listens for the tenant's programs and starts a worker for each.

The worker host outlives its pool, as the programs of other slices do. Its directory contains the socket, to which only the
tenant and the pool's user may connect, the pipe of its log, and an empty directory that becomes its root.
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
    """The worker host of one allocation.

    Args:
        allocation: the allocation whose slice the workers use.
        directory: directory of the socket, the log and the root.
        client: the process that asked for the allocation; None if it is not known.
        user: the user as which the host and its workers run.
        standing: True if the host is needed until the allocation is released.
        name: name of the allocation's slot.
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
        self.used_ns = 0  # when the host was last known to be needed
        self.ended = False  # ended by the pool, or its death has been reported
        self._directory = directory
        self._log = WorkerLog(directory / "log", allocation)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def socket_path(self) -> Path:
        """Path of the socket to which programs connect."""
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
        """Start the process. It becomes a member of its allocation before it does anything else.

        Args:
            enclosure: files, devices and environment that the process sees.
            tenant: the user who may connect; -1: every process that sees the socket, as in a container that mounts it.
            lease: the file that the process locks as a member; None if members are known by their cgroup.
            images: file in which workers keep images of code; None for none.
            join: makes the process a member of the allocation.

        Raises:
            CalabashError: BAD_FILE: the worker cannot be started; CONFLICT: the worker exited at once.
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
                    program += ["--broker-uid", str(tenant)]  # the user who may connect may also pass connections on
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
                    f"the worker host of allocation {self.allocation} cannot be started: {error.strerror}",
                    reason=Reason.BAD_FILE,
                    hint="build it with: make native",
                ) from error
            self.process = identify(self._child.pid)
            if self.process is None:
                raise CalabashError(
                    f"the worker host of allocation {self.allocation} exited at once", reason=Reason.CONFLICT
                )
            join(self.process)
            os.write(begin, b".")
            self._taken.close()  # the process has inherited the lock

    def adopt(self, process: Process) -> None:
        """Use the host process that an earlier pool started, and open its log."""
        self.process = process
        try:
            self._log.open()
        except OSError:
            return  # the process keeps running, and its log is not read

    def serves(self) -> bool:
        """Return True if the host has workers."""
        return self.process is not None and bool(children_of(self.process.pid))

    def listen_to(self) -> None:
        """Copy new output of the host and its workers to the pool's log."""
        self._log.read()

    def found_dead(self) -> bool:
        """Return True, once, if the process has exited and the pool did not end it."""
        if self.process is None or self.ended or alive(self.process):
            return False
        self.ended = True
        return True

    def end(self) -> None:
        """Kill the process; its workers end with it."""
        self.ended = True
        if self.process is not None:
            send_signal(self.process, signal.SIGKILL)

    def reap(self) -> bool:
        """Reap the worker host if it is a child of this process. Return False while it still runs."""
        return self._child is None or self._child.poll() is not None

    def close(self, *, keep_directory: bool = False) -> None:
        """Close the log and the lock, and remove the directory.

        Args:
            keep_directory: leave the directory, because a new host of the allocation uses it already.
        """
        self.release()
        if not keep_directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def release(self) -> None:
        """Close the log and the lock when the pool stops. The process keeps running."""
        self._taken.close()
        self._log.close()

    def _listen(self, tenant: int) -> socket.socket:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(mode=0o700)
        (self._directory / "root").mkdir(mode=0o755)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.bind(str(self.socket_path))
            self.socket_path.chmod(0o600 if tenant >= 0 else 0o666)
            if tenant >= 0 and tenant != os.geteuid():
                os.chown(self.socket_path, tenant, -1)
            listener.listen(_BACKLOG)
            if tenant >= 0:
                self._directory.chmod(0o711)  # other users may traverse the directory only after the socket is set up
        except BaseException:
            listener.close()
            raise
        return listener
