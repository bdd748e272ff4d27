"""Run three tenants on one card for about twenty seconds and check every limit: ``make demo``.

Starts a pool of its own on this machine's cards, or on a simulated node if there are none, runs three programs that do not
know of the product, and prints every second what NVML reports for each of them. The verdict in the last line is computed
from NVML's figures and from what the programs themselves observed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
CALABASH = [sys.executable, "-m", "calabash.cli.main"]
SECONDS = 18.0
SETTLE_S = 3.0
SHARE_ERROR_POINTS_MAX = 3.0
MIB = 1 << 20


@dataclass(slots=True, kw_only=True)
class Tenant:
    """A tenant's program and its measurements."""

    name: str
    cores_percent: int
    memory_share: float
    memory_mib: int = 0
    process: subprocess.Popen[str] | None = None
    used_mib: int = 0
    used_mib_max: int = 0
    share_samples: list[float] = field(default_factory=list)
    said: dict[str, Any] = field(default_factory=dict)

    @property
    def share_percent(self) -> float:
        """Return the mean compute share since the start-up phase, in percent."""
        return sum(self.share_samples) / len(self.share_samples) if self.share_samples else 0.0


TENANTS = (
    Tenant(name="vision", cores_percent=50, memory_share=0.40),
    Tenant(name="speech", cores_percent=30, memory_share=0.25),
    Tenant(name="search", cores_percent=20, memory_share=0.10),
)


def calabash(*arguments: str) -> str:
    """Run a command of the product and return its output; end the demo with its error output if it fails."""
    done = subprocess.run([*CALABASH, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"calabash {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def open_cards(home: Path) -> list[str]:
    """Use the machine's cards, or create a simulated node; return the option that names it to the pool."""
    try:
        pynvml.nvmlInit()
        if pynvml.nvmlDeviceGetCount() > 0:
            return []
    except pynvml.NVMLError:
        pass
    print("no NVIDIA card here: using a simulated node with 2 x A100-40GB")
    calabash("sim", "create", "demo", "--gpus", "2xA100-40GB")
    state = home / "sim" / "demo" / "node.state"
    os.environ["CALABASH_SIM"] = str(state)
    # Loaded first by path, so that the binding's own search by name finds it.
    ctypes.CDLL(str(ROOT / "src/calabash/_native/simgpu/libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)
    pynvml.nvmlInit()
    os.environ.pop("CALABASH_SIM")
    return ["--sim", "demo"]


def start(tenant: Tenant, seconds: float) -> None:
    """Start the tenant's program on its slice."""
    program = [sys.executable, str(ROOT / "examples" / "tenant.py"), "--seconds", str(seconds)]
    amounts = ["--memory", f"{tenant.memory_mib}MiB", "--cores", str(tenant.cores_percent)]
    tenant.process = subprocess.Popen(
        [*CALABASH, "run", "--tenant", tenant.name, *amounts, "--", *program],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C ends the demo, and the demo ends them
    )


def sample(card: Any, since_us: int, settled: bool) -> int:
    """Read memory and compute share of each tenant's process from NVML.

    Args:
        card: NVML's handle of the device.
        since_us: time stamp of the newest sample that was read before.
        settled: count the shares; False during start-up and at the end.

    Returns:
        The time stamp of the newest sample.
    """
    by_pid = {p.pid: p for p in pynvml.nvmlDeviceGetComputeRunningProcesses(card)}
    try:
        readings = pynvml.nvmlDeviceGetProcessUtilization(card, since_us)
    except pynvml.NVMLError:
        readings = []
    for tenant in TENANTS:
        assert tenant.process is not None
        process = by_pid.get(tenant.process.pid)
        tenant.used_mib = -(-(process.usedGpuMemory or 0) // MIB) if process else 0
        tenant.used_mib_max = max(tenant.used_mib_max, tenant.used_mib)
        mine = [float(r.smUtil) for r in readings if r.pid == tenant.process.pid]
        if settled and mine and tenant.process.poll() is None:
            tenant.share_samples.append(sum(mine) / len(mine))
    return max([since_us, *(int(r.timeStamp) for r in readings)])


def table(title: str) -> Table:
    """Return the table of requested and measured amounts, one row per tenant."""
    drawn = Table(title=title, title_justify="left")
    for heading in ("tenant", "share asked", "share got", "memory cap", "memory used", "most used"):
        drawn.add_column(heading, justify="left" if heading == "tenant" else "right")
    for t in TENANTS:
        drawn.add_row(
            t.name,
            f"{t.cores_percent}%",
            f"{t.share_percent:.1f}%",
            f"{t.memory_mib} MiB",
            f"{t.used_mib} MiB",
            f"{t.used_mib_max} MiB",
        )
    return drawn


def watch(card: Any, name: str, console: Console, seconds: float) -> None:
    """Sample once a second until all programs have ended."""
    began = time.monotonic()
    since_us = int(time.time() * 1e6)
    with Live(table(name), console=console, auto_refresh=False, transient=True) as live:
        while any(t.process and t.process.poll() is None for t in TENANTS):
            time.sleep(1.0)
            elapsed = time.monotonic() - began
            since_us = sample(card, since_us, SETTLE_S < elapsed < seconds)
            live.update(Group(table(f"{name}, {elapsed:.0f}s")), refresh=True)
    console.print(table(f"{name}, after {time.monotonic() - began:.0f}s"))


def verdict() -> list[str]:
    """Return a sentence for every broken limit; empty if all limits held."""
    broken = []
    for t in TENANTS:
        assert t.process is not None
        output = t.process.stdout.read() if t.process.stdout else ""
        if t.process.returncode:
            broken.append(f"{t.name} ended with {t.process.returncode}")
            continue
        said = json.loads(output.splitlines()[-1])
        held_mib = said["memory_held_bytes"] / MIB
        if t.used_mib_max > t.memory_mib:
            broken.append(f"{t.name} used {t.used_mib_max} MiB of {t.memory_mib}")
        if said["memory_total_bytes"] != t.memory_mib * MIB:
            broken.append(f"{t.name} was told {said['memory_total_bytes'] // MIB} MiB instead of {t.memory_mib}")
        if not 0.8 * t.memory_mib <= held_mib <= t.memory_mib:
            broken.append(f"{t.name} could hold {held_mib:.0f} MiB of {t.memory_mib}")
        if not t.share_samples:
            broken.append(f"NVML reported no share of {t.name}")
        elif abs(t.share_percent - t.cores_percent) > SHARE_ERROR_POINTS_MAX:
            broken.append(f"{t.name} got {t.share_percent:.1f}% of the card instead of {t.cores_percent}%")
    return broken


def save_picture(console: Console, path: Path, title: str = "make demo") -> None:
    """Save the terminal's content as an SVG without references to other files."""
    console.save_svg(
        str(path),
        title=title,
        code_format=re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL),
    )


def main() -> int:
    """Run the demo; return 0 if every limit held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for which the programs compute")
    parser.add_argument("--svg", type=Path, help="save what the terminal showed")
    options = parser.parse_args()
    home = ROOT / "build" / "demo"
    os.environ["CALABASH_HOME"] = str(home)
    if (home / "pool.sock").exists():  # of a demo that was killed
        subprocess.run([*CALABASH, "down", "--force"], capture_output=True, check=False)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    console = Console(record=options.svg is not None, highlight=False)
    console.print("$ make demo")
    console.print(calabash("up", *open_cards(home)), end="")
    try:
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        total_mib = pynvml.nvmlDeviceGetMemoryInfo(card).total // MIB
        for tenant in TENANTS:
            tenant.memory_mib = int(total_mib * tenant.memory_share)
            calabash("tenant", "create", tenant.name)
            start(tenant, options.seconds)
        watch(card, pynvml.nvmlDeviceGetName(card), console, options.seconds)
        broken = verdict()
        left = json.loads(calabash("ps", "-o", "json"))["items"]
        deadline = time.monotonic() + 5
        while left and time.monotonic() < deadline:
            time.sleep(0.1)
            left = json.loads(calabash("ps", "-o", "json"))["items"]
        broken += [f"slice {a['id']} was not given back" for a in left]
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    finally:
        for tenant in TENANTS:
            if tenant.process and tenant.process.poll() is None:
                tenant.process.kill()
        calabash("down", "--force")
    if broken:
        console.print("a limit was broken: " + "; ".join(broken))
        return 1
    asked = "/".join(str(t.cores_percent) for t in TENANTS)
    got = "/".join(f"{t.share_percent:.1f}" for t in TENANTS)
    console.print(
        f"every limit held: shares asked {asked}, got {got} percent; no tenant above its memory cap; all slices back"
    )
    if options.svg:
        save_picture(console, options.svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
