"""Tries a card out with a program of its own (``probe_program``): memory, copies both ways, a kernel with a known result.

The program also tells what an empty context costs on that card: while it waits, the driver is asked how much it holds.
That figure is charged to a tenant's first context until its real cost has been seen, so that a cap holds from the first
millisecond. A card that hangs costs the probe, never the pool.

Vendors whose cards are not tried this way, and cards that MIG divides, are only asked for a reading.
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
class Probed:
    """What came out; ``context_bytes`` 0 when it could not be measured.

    ``why``: what failed. ``no_room``: it failed because others leave it no room on the card. ``figures``: how long parts of
    it took by the card's own clock, in microseconds, by name.
    """

    passed: bool
    context_bytes: int = 0
    why: str = ""
    no_room: bool = False
    figures: Mapping[str, float] = field(default_factory=dict)


def try_card(driver: GpuDriver, device: Device, environment: Mapping[str, str]) -> Probed:
    """Try one card, within TIMEOUT_S."""
    if device.mig_enabled:
        return _read_only(driver, device, environment)
    return _TRIES.get(device.vendor, _read_only)(driver, device, environment)


def _read_only(driver: GpuDriver, device: Device, environment: Mapping[str, str]) -> Probed:
    del environment
    return Probed(passed=True) if answers(driver, device) else Probed(passed=False, why="it does not answer")


def _cuda(driver: GpuDriver, device: Device, environment: Mapping[str, str]) -> Probed:
    if not answers(driver, device):
        return Probed(passed=False, why="it does not answer")
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
        return Probed(passed=False, why=f"no end within {TIMEOUT_S:g} s")
    except CalabashError as error:
        return Probed(passed=False, why=error.message)
    finally:
        child.kill()
        child.wait()
    return _outcome(child.returncode, said + (rest or b""), context_bytes)


def _until_context(driver: GpuDriver, device: Device, child: subprocess.Popen[bytes]) -> tuple[bytes, int]:
    """What it says first, and what its context holds by then; it goes on when its standard input ends."""
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


def _outcome(code: int, said: bytes, context_bytes: int) -> Probed:
    last = said.decode(errors="replace").strip().rpartition("\n")[2]
    if code != 0:
        why = last[:_SAID_CHARACTERS_MAX] if last and last != "context" else f"the test ended with {code}"
        return Probed(passed=False, why=why, no_room=code == NO_ROOM)
    try:
        figures = msgspec.json.decode(last, type=dict[str, float])
    except msgspec.DecodeError:
        return Probed(passed=False, why="the test ended without figures")
    return Probed(passed=True, context_bytes=context_bytes, figures=figures)


_TRIES: Mapping[str, Callable[[GpuDriver, Device, Mapping[str, str]], Probed]] = {"nvidia": _cuda}
