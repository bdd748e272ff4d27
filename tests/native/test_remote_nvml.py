"""Tests of NVML of remote programs: it shows what a program on the slice itself would see."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.native.remote_world import REMOTE_DIR, WORKER
from tests.native.shim_world import GIB, Slot, World, program
from tests.native.test_shim_view import PROBE, probe

FIGURES = """
import json
from pynvml import *
nvmlInit()
out = {"driver": nvmlSystemGetDriverVersion(), "cuda": nvmlSystemGetCudaDriverVersion_v2(), "cards": []}
for i in range(nvmlDeviceGetCount()):
    h = nvmlDeviceGetHandleByIndex(i)
    out["cards"].append([
        nvmlDeviceGetName(h), nvmlDeviceGetSerial(h), nvmlDeviceGetPciInfo(h).busId, nvmlDeviceGetCudaComputeCapability(h),
        nvmlDeviceGetNumGpuCores(h), nvmlDeviceGetMaxPcieLinkWidth(h), nvmlDeviceGetEnforcedPowerLimit(h),
        nvmlDeviceGetSupportedMemoryClocks(h), nvmlDeviceGetTemperature(h, NVML_TEMPERATURE_GPU) > 0,
        nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(h))), nvmlDeviceGetPowerUsage(h) > 0,
        nvmlDeviceGetTopologyCommonAncestor(h, nvmlDeviceGetHandleByIndex(0)) if i else None,
        [v.value.uiVal for v in nvmlDeviceGetFieldValues(h, [NVML_FI_DEV_ECC_CURRENT])],
    ])

def code(call, *arguments):
    try:
        call(*arguments)
        return 0
    except NVMLError as error:
        return [error.value, str(error)]

out["codes"] = [
    code(nvmlDeviceGetHandleByIndex, 99), code(nvmlDeviceGetHandleByUUID, "GPU-nobody"), code(nvmlDeviceGetName, None),
    code(nvmlDeviceGetFanSpeed_v2, nvmlDeviceGetHandleByIndex(0), 99), code(nvmlShutdown), code(nvmlDeviceGetCount),
]
print(json.dumps(out))
"""
FORKED = """
import os
from pynvml import *
nvmlInit()
before = nvmlDeviceGetName(nvmlDeviceGetHandleByIndex(0))
child = os.fork()
if not child:
    os._exit(0 if nvmlDeviceGetName(nvmlDeviceGetHandleByIndex(0)) == before else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert nvmlDeviceGetName(nvmlDeviceGetHandleByIndex(0)) == before
print("both")
"""


@contextlib.contextmanager
def host(environment: dict[str, str], path: Path) -> Iterator[dict[str, str]]:
    """Start a host of workers in this environment; yield the environment of a program that uses it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        command = [str(WORKER), "--listen", str(listener.fileno())]
        served = subprocess.Popen(command, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, env=environment)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    try:
        yield kept | {"LD_LIBRARY_PATH": str(REMOTE_DIR), "CALABASH_REMOTE": f"unix:{path}"}
    finally:
        served.terminate()
        served.wait(timeout=60)


def run_program(environment: dict[str, str], tmp_path: Path, *command: object) -> str:
    out, err = tmp_path / "program.out", tmp_path / "program.err"
    with out.open("w") as to, err.open("w") as told:
        done = subprocess.run(list(map(str, command)), stdout=to, stderr=told, env=environment, timeout=60, check=False)
    assert done.returncode == 0, err.read_text()
    return out.read_text().strip()


def ask(environment: dict[str, str], tmp_path: Path, text: str, *arguments: str) -> Any:
    return json.loads(run_program(environment, tmp_path, sys.executable, "-c", text, *arguments))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.create(tmp_path, "A100-40GB,T4,A100-40GB")


def test_figures_and_codes_are_those_of_the_cards_own_nvml(world: World, tmp_path: Path) -> None:
    local = ask(os.environ | world.environment(), tmp_path, FIGURES)
    with host(world.environment(), tmp_path / "w.sock") as remote:
        assert ask(remote, tmp_path, FIGURES) == local
    assert len(local["cards"]) == 3


def _probed(slot: Slot, tmp_path: Path, *foreign: str) -> dict[str, Any]:
    with host(slot.environment(), tmp_path / "w.sock") as remote:
        seen: dict[str, Any] = ask(remote, tmp_path, PROBE, *foreign)
    return seen


def test_remote_program_sees_the_slice_as_a_local_one_does(world: World, tmp_path: Path) -> None:
    uuids = world.uuids()
    slot = world.slot(cap=3 * GIB, devices=(2, 1))
    with slot.start_holder(GIB) as holder:
        within = probe(slot, uuids[0], uuids[1])
        elsewhere = _probed(slot, tmp_path, uuids[0], uuids[1])
    assert elsewhere == within
    assert within["devices"][0]["memory"] == [3 * GIB, 2 * GIB, GIB]
    assert within["devices"][0]["pids"] == [holder.pid]


@pytest.mark.parametrize("asked", [None, "0", "1,0", "5", ""])
def test_visible_devices_count_within_the_slice_from_elsewhere_too(
    world: World, tmp_path: Path, asked: str | None
) -> None:
    slot = world.slot(devices=(2, 1))
    more = {} if asked is None else {"CUDA_VISIBLE_DEVICES": asked}
    with host(slot.environment(), tmp_path / "w.sock") as remote:
        assert run_program(remote | more, tmp_path, program("devices")) == slot.run(program("devices"), **more)


def test_nvml_goes_on_in_a_child(world: World, tmp_path: Path) -> None:
    with host(world.environment(), tmp_path / "w.sock") as remote:
        assert run_program(remote, tmp_path, sys.executable, "-c", FORKED) == "both"


def test_without_a_server_nvml_does_not_start(tmp_path: Path) -> None:
    text = "from pynvml import *\ntry:\n    nvmlInit()\nexcept NVMLError as error:\n    print(error.value)"
    environment = os.environ | {"LD_LIBRARY_PATH": str(REMOTE_DIR), "CALABASH_REMOTE": f"unix:{tmp_path / 'nobody'}"}
    assert run_program(environment, tmp_path, sys.executable, "-c", text) == "9"
