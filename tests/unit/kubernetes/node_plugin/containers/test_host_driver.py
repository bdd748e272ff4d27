"""Tests of finding the driver's files on the host, and of the error if there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.native.simnode import simctl
from tests.stand_ins import stand_in_smi
from tests.unit.adapters.host.test_libraries import cache

from calabash.adapters.gpu.library import simulated_library_dir
from calabash.adapters.gpu.nvidia.mps import MpsControl, find_program
from calabash.adapters.gpu.nvidia.reset import reset_real
from calabash.adapters.kube.objects.core import EVENT, Condition
from calabash.adapters.kube.objects.resources import GPU_NODE
from calabash.kubernetes.node_plugin import service as node_service
from calabash.kubernetes.node_plugin.containers.host_driver import find_driver, find_nvml, link_libraries, programs_of
from calabash.kubernetes.node_plugin.service import AgentService
from calabash.kubernetes.node_plugin.settings import AgentSettings
from calabash.model.errors import CalabashError, Reason
from calabash_testing.api_server.client import MemoryKube


def test_libraries_are_found_where_the_hosts_loader_finds_them(tmp_path: Path) -> None:
    for name in ("libcuda.so.580.1", "libnvidia-ptxjitcompiler.so.580.1", "libcuda.so.535.9"):
        (tmp_path / "opt/driver").mkdir(parents=True, exist_ok=True)
        (tmp_path / "opt/driver" / name).touch()
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libcuda.so.1").symlink_to("/opt/driver/libcuda.so.580.1")
    (tmp_path / "etc").mkdir()
    flags = {"x86_64": 0x0303, "aarch64": 0x0A03}[os.uname().machine]
    (tmp_path / "etc/ld.so.cache").write_bytes(cache((flags, "libcuda.so.1", "/usr/lib64/libcuda.so.1")))
    assert sorted(map(str, find_driver(tmp_path, "580.1").libraries)) == [
        "/opt/driver/libcuda.so.580.1",
        "/opt/driver/libnvidia-ptxjitcompiler.so.580.1",
    ]


def test_a_grace_host_is_looked_at_in_its_own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    for machine in ("aarch64", "x86_64"):
        directory = tmp_path / f"usr/lib/{machine}-linux-gnu"
        directory.mkdir(parents=True)
        for name in ("libcuda.so.580.1", "libnvidia-ml.so.1"):
            (directory / name).touch()
    assert find_nvml(tmp_path) == tmp_path / "usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1"
    assert list(map(str, find_driver(tmp_path, "580.1").libraries)) == ["/usr/lib/aarch64-linux-gnu/libcuda.so.580.1"]


def test_a_driver_that_answers_and_has_no_files_for_containers_is_told(tmp_path: Path) -> None:
    with pytest.raises(CalabashError, match=r"libcuda.so.580.1 is not found below") as told:
        find_driver(tmp_path, "580.1")
    assert told.value.reason is Reason.NO_DEVICES
    assert "agent.driverRoot" in told.value.hint


def test_nvml_of_the_host_serves_a_process_whose_own_loader_has_none(tmp_path: Path) -> None:
    """Load NVML in a separate process. The simulated NVML stands for the host's."""
    library = tmp_path / "host/usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    shutil.copy(simulated_library_dir() / "libnvidia-ml.so.1", library)
    assert find_nvml(tmp_path / "host") == library
    assert find_nvml(tmp_path / "nothing") is None
    state = tmp_path / "node.state"
    assert simctl("create", state, "--gpus", "2xT4", "--seed", 1).returncode == 0
    program = """
import sys
from pathlib import Path
from calabash.adapters.gpu.nvidia import driver as nvidia
from calabash.adapters.gpu.protocol import DriverOptions
nvidia.SIM_ENVIRONMENT = "ELSEWHERE"  # as with real cards: nobody says which node
driver = nvidia.open_driver(DriverOptions(library=Path(sys.argv[1])))
print(len(driver.devices()))
"""
    environment = {"PATH": "/usr/bin:/bin", "CALABASH_SIM": str(state)}
    command = [sys.executable, "-c", program, str(library)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.split() == ["2"], done.stderr
    library.write_text("no library")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert "cannot load the host's driver library" in done.stderr


def _host_with_service(host: Path, root: str = "") -> Path:
    """Create a host whose MPS program in /usr/bin is a link; return the program, which prints its environment."""
    base = host / root
    for directory in ("usr/bin", "usr/lib64", "etc/alternatives", "opt/driver"):
        (base / directory).mkdir(parents=True)
    program = base / "opt/driver/nvidia-cuda-mps-control"
    program.write_text('#!/bin/sh\ncat\necho "$LD_LIBRARY_PATH ${PATH%%:*} $CUDA_MPS_PIPE_DIRECTORY"\n')
    program.chmod(0o755)
    (base / "etc/alternatives/mps-control").symlink_to("/opt/driver/nvidia-cuda-mps-control")
    (base / "usr/bin/nvidia-cuda-mps-control").symlink_to("/etc/alternatives/mps-control")
    for name in ("libcuda.so.580.1", "libc.so.6"):
        (base / "usr/lib64" / name).touch()
    return program


@pytest.mark.parametrize("root", ["", "run/nvidia/driver"], ids=["of the host", "of a container"])
def test_the_hosts_multi_process_service_is_run_with_its_drivers_libraries_and_no_others(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calabash.adapters.gpu.programs.find_program", lambda _, also: None)
    host, home = tmp_path / "host", tmp_path / "home"
    home.mkdir()
    program = _host_with_service(host, root)
    driver = find_driver(host, "580.1", root=f"/{root}")
    files = programs_of(host, home / "driver", root=f"/{root}")
    link_libraries(driver, host, home / "driver")
    assert find_program({}, files) == program
    assert {link.name for link in (home / "driver").iterdir()} == {"libcuda.so.580.1", "libcuda.so.1", "libcuda.so"}
    assert (home / "driver/libcuda.so.1").resolve() == host / root / "usr/lib64/libcuda.so.580.1"
    answer = MpsControl(home / "mps/0", "GPU-1", {}, files).ask("get_server_list")
    assert answer.splitlines() == ["get_server_list", f"{home / 'driver'} {program.parent} {home / 'mps/0/pipe'}"]


def test_links_of_an_older_driver_go_when_the_host_has_another(tmp_path: Path) -> None:
    host = tmp_path / "host"
    _host_with_service(host)
    link_libraries(find_driver(host, "580.1"), host, tmp_path / "driver")
    (host / "usr/lib64/libcuda.so.580.1").rename(host / "usr/lib64/libcuda.so.590.2")
    link_libraries(find_driver(host, "590.2"), host, tmp_path / "driver")
    assert (tmp_path / "driver/libcuda.so.1").resolve().name == "libcuda.so.590.2"
    assert not (tmp_path / "driver/libcuda.so.580.1").is_symlink()


def test_a_program_of_our_own_path_and_a_simulated_node_need_nothing_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calabash.adapters.gpu.programs.find_program", lambda name, also: Path(f"/usr/bin/{name}"))
    _host_with_service(tmp_path / "host")
    files = programs_of(tmp_path / "host", tmp_path / "driver")
    assert find_program({}, files) == Path("/usr/bin/nvidia-cuda-mps-control")
    assert find_program({"CALABASH_SIM": "x"}, files) == simulated_library_dir() / "nvidia-cuda-mps-control"


def test_a_card_is_reset_by_the_hosts_own_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calabash.adapters.gpu.programs.find_program", lambda _, also: None)
    host = tmp_path / "host"
    (host / "usr/bin").mkdir(parents=True)
    asked = stand_in_smi(host / "usr/bin", 'echo "$LD_LIBRARY_PATH" >>"$0.env"')
    reset_real(["GPU-1"], programs_of(host, tmp_path / "driver"))
    assert asked.read_text() == "--gpu-reset -i GPU-1\n"
    assert (host / "usr/bin/nvidia-smi.env").read_text() == f"{tmp_path / 'driver'}\n"


def test_a_node_without_the_program_cannot_serve_the_mode_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calabash.adapters.gpu.programs.find_program", lambda _, also: None)
    _host_with_service(tmp_path / "host")
    (tmp_path / "host/usr/bin/nvidia-cuda-mps-control").unlink()
    files = programs_of(tmp_path / "host", tmp_path / "driver")
    with pytest.raises(CalabashError, match="mode mps cannot be served") as told:
        find_program({}, files)
    assert told.value.reason is Reason.BAD_FILE


@contextmanager
def agent(
    client: MemoryKube, tmp_path: Path, patch: pytest.MonkeyPatch
) -> Iterator[tuple[AgentService, threading.Thread]]:
    """Return an agent on a node whose host has no driver, and its thread."""
    patch.setattr(node_service, "load_client", lambda _: client)
    patch.setattr(node_service, "open_present", lambda _: ())
    patch.setattr(node_service, "RETRY_S", 0.01)
    (tmp_path / "host").mkdir()
    settings = AgentSettings(node="n1", home=tmp_path / "home", host=tmp_path / "host", metrics_port=0)
    service = AgentService(settings)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield service, thread
    finally:
        service.stop()
        thread.join(60)
    assert not thread.is_alive()


def until(check: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end
        time.sleep(0.01)


def readiness(service: AgentService) -> tuple[int, str]:
    """Return the status and the text of the agent's probe."""
    connection = HTTPConnection("127.0.0.1", service.metrics_address[1], timeout=60)
    connection.request("GET", "/readyz")
    reply = connection.getresponse()
    return reply.status, reply.read().decode()


def conditions(client: MemoryKube) -> tuple[Condition, ...]:
    found = client.get(GPU_NODE, "n1")
    return found.status.conditions if found is not None else ()


def test_a_node_without_a_driver_says_so_and_its_agent_goes_on_trying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MemoryKube()
    tries: list[object] = []
    with agent(client, tmp_path, monkeypatch) as (service, thread):
        monkeypatch.setattr(node_service, "find_nvml", lambda *_, **__: tries.append(None))
        until(lambda: len(tries) > 3 and bool(client.list(EVENT, "default").items))
        assert thread.is_alive()
        assert readiness(service) == (200, "ok"), "an update of the DaemonSet does not stop at this node"
    (condition,) = conditions(client)
    assert (condition.type, condition.status, condition.reason) == ("Ready", "False", "no_devices")
    assert "this node has no NVIDIA driver" in condition.message
    assert "hint: install the driver" in condition.message
    assert [(event.reason, event.count) for event in client.list(EVENT, "default").items] == [("NoDevices", 1)]


def test_a_disk_that_is_full_is_told_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "/var/lib/calabash/lib/ld.so.preload")

    client = MemoryKube()
    monkeypatch.setattr(node_service, "find_nvml", full)
    with agent(client, tmp_path, monkeypatch) as (service, thread):
        until(lambda: bool(conditions(client)))
        assert thread.is_alive()
        assert readiness(service)[0] == 503
    assert "No space left on device" in conditions(client)[0].message
