"""Tests of the MPS control daemon under sanitizers, with arbitrary input at its socket."""

from __future__ import annotations

import contextlib
import functools
import random
import socket
import subprocess
from pathlib import Path

from tests.compiled import built
from tests.native.mps_world import Service
from tests.native.sim_cuda_programs import INCLUDE, ROOT, STRICT, CudaNode
from tests.native.test_sim_cuda_sanitized import FLAGS

WORDS = (
    b"get_server_list", b"get_server_status", b"start_server", b"shutdown_server", b"get_client_list", b"ps", b"-p",
    b"set_active_thread_percentage", b"set_default_device_pinned_mem_limit", b"get_device_pinned_mem_limit", b"-uid",
    b"set_device_pinned_mem_limit", b"terminate_client", b"device_query", b"get_device_client_list", b"client", b"-1",
    b"0", b"50", b"1G", b"99999999999999999999", b"GPU-", b"\xff\xfe", b"%s%n", b"nan", b"1e400",
)  # fmt: skip


@functools.cache
def control() -> Path:
    """Return the instrumented daemon."""
    return built("sim-mps-sanitized", FLAGS, _compile) / "nvidia-cuda-mps-control"


def _compile(directory: Path) -> None:
    own = [p for p in sorted((ROOT / "native/sim/mps").glob("*.c")) if p.name != "server.c"]
    generated = ROOT / "build" / "native"
    sources = [*own, *sorted((ROOT / "native/sim/node").glob("*.c")), generated / "api" / "sim_cards.c"]
    include = [f"-I{ROOT / 'native'}", f"-I{generated}", "-isystem", str(INCLUDE)]
    out = ["-o", str(directory / "nvidia-cuda-mps-control")]
    done = subprocess.run(
        ["gcc", *STRICT, *FLAGS, *include, *map(str, sources), *out], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in ("nvidia-cuda-mps-server", "libcuda.so.1"):
        (directory / name).symlink_to(ROOT / "src/calabash/_native/simgpu" / name)


def test_nothing_that_is_sent_harms_the_daemon(tmp_path: Path) -> None:
    pick = random.Random(11)
    node = CudaNode(tmp_path / "node.state", "T4")
    service = Service(node, tmp_path / "mps", control=control(), ASAN_OPTIONS="detect_leaks=0")
    try:
        alive = service.client()
        server = str(service.server).encode()
        for _ in range(1500):
            words = [pick.choice((*WORDS, server)) for _ in range(pick.randrange(9))]
            message = b" ".join(words) if pick.random() < 0.9 else pick.randbytes(pick.randrange(1, 1200))
            if message.startswith(b"shutdown_server " + server):
                continue
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                peer.connect(str(service.pipe / "control"))
                peer.send(message or b" ")
                if pick.random() < 0.7:
                    peer.settimeout(0.02)
                    with contextlib.suppress(TimeoutError):
                        peer.recv(65536)
        assert service.daemon.poll() is None
        assert service.control("get_server_list").split() == [server.decode()]
        assert alive.call() == 0
    finally:
        service.close()
        node.close()
