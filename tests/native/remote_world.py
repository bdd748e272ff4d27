"""A host of workers on a simulated node, and programs that use it instead of a local driver."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tests.native.sim_cuda_programs import CudaNode, program
from tests.native.simnode import until

from calabash.adapters.gpu.library import simulated_library_dir

REMOTE_DIR = simulated_library_dir().parent / "remote"
WORKER = REMOTE_DIR / "calabash-worker"


class RemoteNode(CudaNode):
    """A simulated node whose programs have no driver: each gets a worker there."""

    def __init__(self, state: Path, gpus: str, *options: str, **environment: str) -> None:
        """Start the node; ``environment`` is the host's."""
        super().__init__(state, gpus)
        self.socket = state.with_suffix(".sock")
        self.said = state.with_suffix(".said")
        with socket.socket(socket.AF_UNIX) as listener, self.said.open("w") as said:
            listener.bind(str(self.socket))
            listener.listen(64)
            self.host = subprocess.Popen(
                [WORKER, "--listen", str(listener.fileno()), *options],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=said,
                env=super().environment(**environment),
            )

    def environment(self, **extra: str) -> dict[str, str]:
        own = {"LD_LIBRARY_PATH": str(REMOTE_DIR), "CALABASH_REMOTE": f"unix:{self.socket}"}
        return os.environ | own | extra

    def run(self, name: str, *arguments: object, **extra: str) -> str:
        """Run a program and return its output.

        The output goes to files, because a process that hangs would keep a pipe open.
        """
        command = [str(program(name)), *map(str, arguments)]
        out, err = self.state.with_suffix(".out"), self.state.with_suffix(".err")
        with out.open("w") as to, err.open("w") as told:
            done = subprocess.run(
                command, stdout=to, stderr=told, env=self.environment(**extra), timeout=60, check=False
            )
        assert done.returncode == 0, f"{' '.join(command[1:])}: exit {done.returncode}\n{err.read_text()}"
        return out.read_text()

    def command(self, name: str, *arguments: object) -> list[str]:
        return [str(program(name)), *map(str, arguments)]

    def start_with(
        self, name: str, *arguments: object, stderr: IO[str], prefix: Sequence[str] = (), **extra: str
    ) -> subprocess.Popen[str]:
        """Start a program, wait for its line ``ready``, and return it. ``prefix`` is a command that starts it."""
        process = subprocess.Popen(
            [*prefix, *self.command(name, *arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=self.environment(**extra),
        )
        self._started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", "the program did not come up"
        return process

    def workers(self) -> list[int]:
        """Return the process IDs of the workers."""
        children = Path(f"/proc/{self.host.pid}/task/{self.host.pid}/children")
        return [int(pid) for pid in children.read_text().split()]

    def wait_for_workers(self) -> None:
        """Wait until all workers have ended with their program; check that they printed only output of their driver."""
        until(lambda: not self.workers(), "the workers are still there")
        assert [line for line in self.said.read_text().splitlines() if not line.startswith("simulated CUDA: ")] == []

    def close(self) -> None:
        super().close()
        self.host.terminate()
        self.host.wait(timeout=60)


class DirectServer:
    """A server that starts a worker for each TCP connection, without a broker."""

    def __init__(self, node: CudaNode) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._environment = CudaNode.environment(node)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                number = connection.fileno()
                subprocess.Popen([WORKER, str(number)], pass_fds=[number], env=self._environment)
