"""Test a card in a separate process (``probe_program``): memory, copies both ways, a kernel with a known result.

The test also measures the memory of an empty CUDA context: while the test program waits, the driver reports how much it
uses. The pool charges this amount for the first context of a program until its real size is known, so that memory
limits are effective from the start of a program. A card that hangs blocks the test program, but not the agent.

Cards of other vendors than NVIDIA, and cards in MIG mode, are only read.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from calabash.adapters.gpu.protocol import GpuDriver
from calabash.adapters.host.children import LIBRARIES, start_module
from calabash.model.device import Device
from calabash.model.errors import CalabashError
from calabash.model.units import MIB
from calabash.node.devices.inventory import answers
from calabash.node.devices.probe_program import NO_ROOM

TIMEOUT_S = 10.0
_SAID_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Result of a test of a card.

    Args:
        context_bytes: memory of an empty context; 0 if it could not be measured.
        why: the failure; "" if the test passed.
        no_room: the test failed because other programs left too little free memory.
        figures: durations of the steps by name, in microseconds by the card's own clock.
    """

    passed: bool
    context_bytes: int = 0
    why: str = ""
    no_room: bool = False
    figures: Mapping[str, float] = field(default_factory=dict)


def probe_card(driver: GpuDriver, device: Device, environment: Mapping[str, str]) -> ProbeResult:
    """Test one card; each phase of the test fails after TIMEOUT_S.

    Args:
        environment: variables that direct a program to the simulated node; empty on a machine with cards.
    """
    if device.mig_enabled:
        return _read_only(driver, device, environment)
    return _TRIES.get(device.vendor, _read_only)(driver, device, environment)


def _read_only(driver: GpuDriver, device: Device, environment: Mapping[str, str]) -> ProbeResult:
    del environment
    return ProbeResult(passed=True) if answers(driver, device) else ProbeResult(passed=False, why="it does not answer")


def _cuda(driver: GpuDriver, device: Device, environment: Mapping[str, str]) -> ProbeResult:
    if not answers(driver, device):
        return ProbeResult(passed=False, why="it does not answer")
    child = start_module(
        "calabash.node.devices.probe_program",
        inherit=LIBRARIES,
        environment={**environment, "CUDA_VISIBLE_DEVICES": device.uuid},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        said, context_bytes = _until_context(driver, device, child)
        rest, _ = child.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return ProbeResult(passed=False, why=f"no end within {TIMEOUT_S:g} s")
    except CalabashError as error:
        return ProbeResult(passed=False, why=error.message)
    finally:
        child.kill()
        child.wait()
    return _outcome(child.returncode, said + (rest or b""), context_bytes)


def _until_context(driver: GpuDriver, device: Device, child: subprocess.Popen[bytes]) -> tuple[bytes, int]:
    """Return the first output of the program and the memory of its context, in bytes.

    The program waits until its standard input is closed.
    """
    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    deadline = time.monotonic() + TIMEOUT_S
    while not (said := child.stdout.read()):
        if child.poll() is not None:
            return b"", 0
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(child.args, TIMEOUT_S)
        time.sleep(0.005)
    held = {p.pid: p.used_mib for p in driver.processes(device.uuid)}
    return said, held.get(child.pid, 0) * MIB


def _outcome(code: int, said: bytes, context_bytes: int) -> ProbeResult:
    last = said.decode(errors="replace").strip().rpartition("\n")[2]
    if code != 0:
        why = last[:_SAID_CHARACTERS_MAX] if last and last != "context" else f"the test ended with {code}"
        return ProbeResult(passed=False, why=why, no_room=code == NO_ROOM)
    try:
        figures = msgspec.json.decode(last, type=dict[str, float])
    except msgspec.DecodeError:
        return ProbeResult(passed=False, why="the test ended without figures")
    return ProbeResult(passed=True, context_bytes=context_bytes, figures=figures)


_TRIES: Mapping[str, Callable[[GpuDriver, Device, Mapping[str, str]], ProbeResult]] = {"nvidia": _cuda}
