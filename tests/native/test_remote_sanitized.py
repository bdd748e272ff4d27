"""The worker under address and undefined-behaviour sanitizers, told what programs say, changed in many ways."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sysconfig
from pathlib import Path

import pytest
from tests.compiled import built
from tests.native.remote_door import Line
from tests.native.remote_world import REMOTE_DIR, OpenDoor
from tests.native.sim_cuda_programs import STRICT, CudaNode, program
from tests.native.test_sim_cuda import MEMORY, ORDER

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("remote_fuzz.c")
INCLUDE = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "include"
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
HOSTS_OWN = {"main", "host", "children", "control", "greeting", "remote"}
GENERATED = ("remote/remote_worker.o", "remote/remote_nvml_worker.o", "api/cuda_resolve.o", "image/bytes.o")
SESSIONS = 300
RECORDING_MAX = 1 << 20


class Recorder(Line):
    """Keeps what programs say."""

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


@pytest.fixture(scope="module")
def fuzzer() -> Path:
    """The worker without its host, and a program that feeds it."""

    def make(out: Path) -> None:
        variables = [f"BUILD={out}/objects", f"OUT={out}", f"EXTRA_CFLAGS={FLAGS}"]
        native = ["make", "-s", "-C", str(ROOT / "native"), *variables]
        subprocess.run([*native, f"{out}/remote/calabash-worker"], check=True)
        objects = [
            *(path for path in (out / "objects/remote/worker").glob("*.o") if path.stem not in HOSTS_OWN),
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


def _record(node: CudaNode, to: Path) -> None:
    """What the programs that test the simulated driver say."""
    door = OpenDoor(node)
    recorder = Recorder(door.port)
    remote = {"LD_LIBRARY_PATH": str(REMOTE_DIR), "CALABASH_REMOTE": f"tcp:127.0.0.1:{recorder.port}"}
    for name, checks in (("sim_cuda_memory", MEMORY), ("sim_cuda_order", ORDER)):
        for check in list(checks.values())[:12]:
            command = [str(program(name)), check]
            subprocess.run(command, env=os.environ | remote, capture_output=True, check=False, timeout=60)
    recorder.close()
    door.close()
    short = [said for said in recorder.said if len(said) < RECORDING_MAX]
    assert len(short) > 10
    to.write_bytes(b"".join(struct.pack("<Q", len(said)) + said for said in short))


@pytest.mark.slow
def test_no_frame_makes_the_worker_touch_what_is_not_its_own(fuzzer: Path, tmp_path: Path) -> None:
    node = CudaNode(tmp_path / "node.state", "A100-40GB,T4")
    _record(node, tmp_path / "recording")
    is_random = os.environ.get("CALABASH_EXAMPLES") == "random"
    seed = int.from_bytes(os.urandom(4), "little") if is_random else 1
    options = {"ASAN_OPTIONS": "detect_leaks=0:exitcode=99", "UBSAN_OPTIONS": "exitcode=99:print_stacktrace=1"}
    done = subprocess.run(
        [str(fuzzer), str(tmp_path / "recording"), str(seed), str(SESSIONS)],
        env=node.environment(**options),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    node.close()
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert int(done.stdout.split()[0]) > 10_000, done.stdout
