"""Fuzzing of the worker under sanitizers, with recorded and mutated frames of programs.

As a module it runs for as many frames as requested: ``python -m tests.native.remote_fuzzing --frames 100000``. A
session that fails is reported with its number; the frames of its batch are not counted. The simulated driver behind
the worker then runs under sanitizers too.
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from tests.compiled import built
from tests.native.remote_connections import CuttableProxy
from tests.native.remote_world import REMOTE_DIR, DirectServer
from tests.native.sim_cuda_programs import STRICT, CudaNode, program
from tests.native.test_sim_cuda import MEMORY, ORDER
from tests.native.test_sim_cuda_sanitized import sanitized

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("remote_fuzz.c")
INCLUDE = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "include"
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
NOT_HERE = {"session", "main", "host", "children", "control", "greeting", "remote_stream", "heartbeat"}
GENERATED = ("remote/remote_worker.o", "remote/remote_nvml_worker.o", "api/cuda_resolve.o", "image/bytes.o")
RECORDING_MAX = 1 << 20
BATCH_SESSIONS = 512


class Recorder(CuttableProxy):
    """A proxy that records what programs send."""

    def __init__(self, port: int) -> None:
        self.said: list[bytes] = []
        super().__init__(port)

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        said = bytearray()
        is_programs = other.getpeername()[1] == self._to
        try:
            while data := one.recv(1 << 18):
                said += data
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        if is_programs:
            self.said.append(bytes(said))


def fuzzer() -> Path:
    """Build the worker without its host, linked with a program that feeds it."""

    def make(out: Path) -> None:
        variables = [f"BUILD={out}/objects", f"OUT={out}", f"EXTRA_CFLAGS={FLAGS}"]
        native = ["make", "-s", "-C", str(ROOT / "native"), *variables]
        subprocess.run([*native, f"{out}/remote/calabash-worker"], check=True)
        objects = [
            *(path for path in (out / "objects/remote/worker").glob("*.o") if path.stem not in NOT_HERE),
            *(path for path in (out / "objects/remote/wire").glob("*.o") if path.stem not in ("tls", "resume")),
            *(out / "objects" / name for name in GENERATED),
        ]
        include: list[str | Path] = [
            f"-I{ROOT}/native",
            f"-I{out}/objects",
            f"-I{out}/objects/remote",
            "-isystem",
            INCLUDE,
        ]
        command: list[str | Path] = [
            "gcc",
            *STRICT,
            *FLAGS.split(),
            *include,
            SOURCE,
            *objects,
            "-ldl",
            "-o",
            out / "remote_fuzz",
        ]
        subprocess.run(command, check=True)

    sources = [path.read_text() for path in (SOURCE, *sorted((ROOT / "native/remote").rglob("*.[ch]")))]
    return built("remote-sanitized", [FLAGS, *sources], make) / "remote_fuzz"


def record(node: CudaNode, to: Path) -> None:
    """Record what the programs that test the simulated driver send."""
    server = DirectServer(node)
    recorder = Recorder(server.port)
    remote = {"LD_LIBRARY_PATH": str(REMOTE_DIR), "CALABASH_REMOTE": f"tcp:127.0.0.1:{recorder.port}"}
    pinned = {name: name for name in ("through_pinned", "into_pinned")}
    for name, checks in (("sim_cuda_memory", MEMORY), ("sim_cuda_order", ORDER), ("remote_memory", pinned)):
        for check in list(checks.values())[:12]:
            command = [str(program(name)), check]
            subprocess.run(command, env=os.environ | remote, capture_output=True, check=False, timeout=60)
    recorder.close()
    server.close()
    short = [said for said in recorder.said if len(said) < RECORDING_MAX]
    assert len(short) > 10
    to.write_bytes(b"".join(struct.pack("<Q", len(said)) + said for said in short))


class SessionFailedError(Exception):
    """A failed session, with its output."""


def feed(
    fuzzer: Path, recording: Path, node: CudaNode, *, seed: int, sessions: int, **environment: str
) -> tuple[int, ...]:
    """Return the counts of a batch. Raises SessionFailedError.

    The counts are of frames read, mutated frames, sessions, stopped sessions, copies from the driver to page-locked
    memory, and other copies.
    """
    options = {"ASAN_OPTIONS": "detect_leaks=0:exitcode=99", "UBSAN_OPTIONS": "exitcode=99:print_stacktrace=1"}
    with tempfile.TemporaryFile("w+") as told:
        done = subprocess.run(
            [str(fuzzer), str(recording), str(seed), str(sessions)],
            env=node.environment(**options, **environment),
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
            check=False,
        )
        if done.returncode:
            told.seek(0)
            lines = [line for line in told.read().splitlines() if not line.endswith("is malformed")]
            begin = next((i for i, line in enumerate(lines) if "ERROR: " in line or "runtime error" in line), -200)
            raise SessionFailedError("\n".join([done.stdout, *lines[begin:][:200]]))
    numbers = [int(word) for word in done.stdout.replace(",", " ").split() if word.isdigit()]
    return tuple(numbers)


def main() -> None:
    """Feed the worker until so many frames were mutated."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=1_000_000, help="changed ones")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    asked = parser.parse_args()
    said = changed = sessions = faults = 0
    with tempfile.TemporaryDirectory() as scratch:
        node = CudaNode(Path(scratch) / "node.state", "A100-40GB,T4")
        record(node, Path(scratch) / "recording")
        built_fuzzer = fuzzer()
        driver = str(sanitized())
        while changed < asked.frames:
            seed, sessions = asked.seed + sessions, sessions + BATCH_SESSIONS
            try:
                more = feed(
                    built_fuzzer,
                    Path(scratch) / "recording",
                    node,
                    seed=seed,
                    sessions=BATCH_SESSIONS,
                    LD_LIBRARY_PATH=driver,
                )
            except SessionFailedError as failed:
                faults += 1
                print(failed, flush=True)
                continue
            said, changed = said + more[0], changed + more[1]
            print(
                f"seed {asked.seed}: {said} frames, {changed} of them changed, in {sessions} sessions, {faults} faults",
                flush=True,
            )
        node.close()


if __name__ == "__main__":
    main()
