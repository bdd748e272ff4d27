"""The multi-process service on a simulated node: a control daemon of the test, and clients that execute commands."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from tests.native.sim_cuda_programs import CudaNode, program

from calabash.adapters.gpu.library import simulated_library_dir

CONTROL = simulated_library_dir() / "nvidia-cuda-mps-control"
DEADLINE_S = 60.0


class Client:
    """A running ``sim_mps_client``, which reads commands from standard input."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        word, result, sms = process.stdout.readline().split()
        assert word == "ready"
        self.result, self.sms = int(result), int(sms)

    def send_line(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def read_answer(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def ask(self, line: str) -> list[str]:
        self.send_line(line)
        return self.read_answer()

    def call(self, line: str = "call") -> int:
        """Return the CUDA result of one command."""
        return int(self.ask(line)[-1])

    def end(self) -> None:
        self.process.kill()
        with contextlib.suppress(BrokenPipeError), self.process:  # its pipes are closed
            self.process.wait()


class Service:
    """One control daemon with directories of its own below ``home``."""

    def __init__(self, node: CudaNode, home: Path, *options: str, control: Path = CONTROL, **environment: str) -> None:
        self.node = node
        self.pipe = home / "pipe"
        self.log = home / "log"
        self._control = control
        self._clients: list[Client] = []
        home.mkdir(exist_ok=True)
        self.pipe.mkdir(exist_ok=True)
        self._own = environment
        self.daemon = subprocess.Popen(
            [control, "-f", *options], env=self.environment(**environment), stderr=subprocess.DEVNULL
        )
        while not (self.pipe / "control").exists() or self._run("get_server_list").returncode != 0:
            assert self.daemon.poll() is None, "the daemon did not start"

    def service_environment(self) -> dict[str, str]:
        """Return the environment of a program that uses this service."""
        return {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}

    def environment(self, **extra: str) -> dict[str, str]:
        return self.node.environment(**(self.service_environment() | extra))

    def _run(self, text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._control], input=text + "\n", capture_output=True, text=True, env=self.environment(),
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    def control(self, *words: object) -> str:
        """Return the output of a command of the control daemon."""
        done = self._run(" ".join(map(str, words)))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def client(self, **extra: str) -> Client:
        """Start a client program; it may have failed to join the service."""
        process = subprocess.Popen(
            [str(program("sim_mps_client"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment(**extra),
        )
        client = Client(process)
        self._clients.append(client)
        return client

    @property
    def server(self) -> int:
        """Return the pid of the only server."""
        return int(self.control("get_server_list"))

    def close(self) -> None:
        servers = self._run("get_server_list").stdout.split()
        for client in self._clients:
            client.end()
        self.daemon.kill()
        self.daemon.wait()
        for pid in servers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
