"""Programs that use devices of two servers: two simulated nodes, each with a host of workers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.native.remote_world import REMOTE_DIR, RemoteNode
from tests.native.sim_cuda_programs import program

SPAN_DIR = REMOTE_DIR / "span"


class OtherNode(RemoteNode):
    """A node with other cards."""

    seed = 2


class SpanWorld:
    """Two nodes with the given cards."""

    def __init__(self, directory: Path, first: str, second: str) -> None:
        self.directory = directory
        self.nodes = [RemoteNode(directory / "node0.state", first), OtherNode(directory / "node1.state", second)]

    def environment(self, **extra: str) -> dict[str, str]:
        where = "\n".join(f"unix:{node.socket}" for node in self.nodes)
        return os.environ | {"LD_LIBRARY_PATH": str(SPAN_DIR), "CALABASH_REMOTE": f"span:{where}"} | extra

    def run(self, name: str, *arguments: object, **extra: str) -> str:
        """Run a program and return its output; it must succeed.

        Output goes to files, because a process that hangs would keep a pipe open.
        """
        out, err = self.directory / "out", self.directory / "err"
        command = [str(program(name)), *map(str, arguments)]
        with out.open("w") as to, err.open("w") as told:
            done = subprocess.run(
                command, stdout=to, stderr=told, env=self.environment(**extra), timeout=60, check=False
            )
        assert done.returncode == 0, f"{' '.join(command[1:])}: exit {done.returncode}\n{err.read_text()}"
        return out.read_text()

    def ended(self) -> bool:
        """Return True if every worker has ended, and no memory is held on any card."""
        for node in self.nodes:
            node.wait_for_workers()
        return all(node.device()["used_bytes"] == 0 for node in self.nodes)

    def close(self) -> None:
        for node in self.nodes:
            node.close()
