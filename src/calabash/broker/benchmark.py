"""Measure the latency and bandwidth between a program and its remote devices (``calabash remote bench``).

Measures the time to create a CUDA context, kernel launches per second, the time of a synchronous call, and the
bandwidth of copies of several sizes. All calls go through the client library that every remote program uses. ``--rtt``
adds a delay between the program and the server to show the effect of distance. Calls are made from Python, which adds
about half a microsecond to each.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calabash.adapters.host.children import module_command, start_program
from calabash.broker.delay import DelayedLine
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import format_mib

_KERNEL = b".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry nothing()\n{\n\tret;\n}\n\0"
_LAUNCHES, _CALLS, _COPY_S = 20_000, 500, 0.5
SIZES_MIB = (1, 16, 64, 256)


class _Card:
    """CUDA driver calls on the first device that this process sees; creates the context of the device."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *given: Any) -> None:
        """Call a driver function.

        Raises:
            CalabashError: CONFLICT with the CUDA error code if the call fails.
        """
        code = getattr(self.cuda, name)(*given)
        if code:
            raise CalabashError(f"{name} failed with {code}", reason=Reason.CONFLICT, hint="see the server's log")


def measure(largest_mib: int) -> dict[str, Any]:
    """Return all measurements by name; each name ends in its unit. Copies above ``largest_mib`` are left out."""
    begun = time.perf_counter()
    card = _Card()
    card.call("cuCtxSynchronize")
    figures: dict[str, Any] = {"start_ms": round((time.perf_counter() - begun) * 1e3, 2)}
    figures["sync_us"] = round(_synchronous_us(card), 1)
    figures["launches_per_s"] = round(_launches_per_s(card))
    figures["copies"] = [_copies(card, mib) for mib in SIZES_MIB if mib <= largest_mib]
    return figures


def _synchronous_us(card: _Card) -> float:
    """Return the median time of a synchronous call in microseconds: a copy of one byte from the device."""
    there, here = ctypes.c_uint64(), ctypes.create_string_buffer(1)
    card.call("cuMemAlloc_v2", ctypes.byref(there), ctypes.c_size_t(1))

    def once() -> None:
        card.call("cuMemcpyDtoH_v2", here, there, ctypes.c_size_t(1))

    return statistics.median(_took(once) for _ in range(_CALLS)) * 1e6


def _launches_per_s(card: _Card) -> float:
    """Return the rate of launches of an empty kernel from one thread, with one synchronization at the end."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    card.call("cuModuleLoadData", ctypes.byref(module), _KERNEL)
    card.call("cuModuleGetFunction", ctypes.byref(function), module, b"nothing")
    launch = card.cuda.cuLaunchKernel
    launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]

    def many() -> None:
        for _ in range(_LAUNCHES):
            launch(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        card.call("cuCtxSynchronize")

    many()
    return _LAUNCHES / _took(many)


def _copies(card: _Card, mib: int) -> dict[str, Any]:
    """Return the bandwidth of copies of ``mib`` MiB to and from the device in GiB/s, the best of several copies."""
    size = ctypes.c_size_t(mib << 20)
    here, there = ctypes.create_string_buffer(mib << 20), ctypes.c_uint64()
    card.call("cuMemAlloc_v2", ctypes.byref(there), size)

    def up() -> None:
        card.call("cuMemcpyHtoD_v2", there, here, size)
        card.call("cuCtxSynchronize")

    def back() -> None:
        card.call("cuMemcpyDtoH_v2", here, there, size)

    found = {"mib": mib, "to_card_gib_s": _best(up, mib), "back_gib_s": _best(back, mib)}
    card.call("cuMemFree_v2", there)
    return found


def _best(copy: Callable[[], None], mib: int) -> float:
    least, left_s = float("inf"), _COPY_S
    while left_s > 0:
        took_s = _took(copy)
        least, left_s = min(least, took_s), left_s - took_s
    return round(mib / 1024 / least, 2)


def _took(call: Callable[[], None]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def shown(figures: dict[str, Any], rtt_s: float) -> str:
    """Format the measurements for a terminal."""
    lines = [f"{'delay put between':<22}{rtt_s * 1e3:g} ms"] if rtt_s else []
    lines += [
        f"{'start to a context':<22}{figures['start_ms']:g} ms",
        f"{'synchronous call':<22}{figures['sync_us']:g} us",
        f"{'launches':<22}{figures['launches_per_s']:,} /s",
    ]
    for copy in figures["copies"]:
        size = f"copy of {format_mib(copy['mib'])}"
        lines.append(f"{size:<22}{copy['to_card_gib_s']:g} GiB/s to the card, {copy['back_gib_s']:g} GiB/s back")
    return "\n".join(lines)


def _behind_a_delay(rtt_s: float, words: list[str]) -> int:
    """Run the measurement in a child process that reaches the server through a delay; return its exit status.

    Args:
        rtt_s: round-trip time to add, in seconds.
        words: arguments of the child process.
    """
    given = Path(os.environ["CALABASH_REMOTE"].removeprefix("file:")).absolute()
    lines = given.read_text().splitlines()
    server = next(line.removeprefix("server=") for line in lines if line.startswith("server="))
    with DelayedLine(server, rtt_s) as line:
        path = given.with_name(f"{given.name}.delayed")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            text = "".join(f"{f'server={line.address}' if old.startswith('server=') else old}\n" for old in lines)
            os.write(descriptor, text.encode())
            environment = os.environ | {"CALABASH_REMOTE": f"file:{path}"}  # the libraries of the slice are in it
            command = module_command("calabash.broker.benchmark", "--delayed", *words)
            return start_program(command, environment=environment).wait()
        finally:
            os.close(descriptor)
            path.unlink(missing_ok=True)


def main() -> int:
    """Run the measurement and print its result; return the exit status."""
    parser = argparse.ArgumentParser(prog="calabash remote bench")
    parser.add_argument("--rtt-s", type=float, default=0.0)
    parser.add_argument("--largest-mib", type=int, default=SIZES_MIB[-1])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--delayed", action="store_true")
    asked = parser.parse_args()
    if asked.rtt_s and not asked.delayed:
        return _behind_a_delay(asked.rtt_s, [word for word in sys.argv[1:] if word != "--delayed"])
    try:
        figures = measure(asked.largest_mib)
    except CalabashError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return 1
    print(json.dumps({"rtt_s": asked.rtt_s, **figures}) if asked.json else shown(figures, asked.rtt_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
