"""A server that starts a worker for everybody who connects, and programs that use it instead of a driver of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from pathlib import Path

from tests.native.sim_cuda_programs import CudaNode, program

from calabash.seams.gpu.library import simulated_library_dir

REMOTE_DIR = simulated_library_dir().parent / "remote"


class RemoteNode(CudaNode):
    """A simulated node whose programs have no driver: each gets a worker there."""

    def __init__(self, state: Path, gpus: str) -> None:
        super().__init__(state, gpus)
        self.socket = state.with_suffix(".sock")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.socket))
        self._listener.listen(64)
        self.workers: list[subprocess.Popen[bytes]] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def environment(self, **extra: str) -> dict[str, str]:
        own = {"LD_LIBRARY_PATH": str(REMOTE_DIR), "CALABASH_REMOTE": f"unix:{self.socket}"}
        return os.environ | own | extra

    def run(self, name: str, *arguments: object, **extra: str) -> str:
        """As the node does; output goes to files, for whatever hangs holds a pipe open."""
        command = [str(program(name)), *map(str, arguments)]
        out, err = self.state.with_suffix(".out"), self.state.with_suffix(".err")
        with out.open("w") as to, err.open("w") as told:
            done = subprocess.run(
                command, stdout=to, stderr=told, env=self.environment(**extra), timeout=60, check=False
            )
        assert done.returncode == 0, f"{' '.join(command[1:])}: exit {done.returncode}\n{err.read_text()}"
        return out.read_text()

    def wait_for_workers(self) -> None:
        """A worker leaves by itself when its program has gone."""
        for worker in self.workers:
            assert worker.wait(timeout=60) == 0

    def close(self) -> None:
        super().close()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for worker in self.workers:
            worker.kill()
            worker.wait()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                number = str(connection.fileno())
                self.workers.append(
                    subprocess.Popen(
                        [REMOTE_DIR / "calabash-worker", number],
                        pass_fds=[connection.fileno()],
                        stdin=subprocess.DEVNULL,
                        env=super().environment(),
                    )
                )
