"""Checks of remote cards on a real card (or a simulated one, with BENCH_CARD=sim): the product's own commands, over loopback.

Part of ``tests/gpu/run.sh``. A pool, a server beside it, a client with a token and a home of its own; the same program on
the driver itself, in a slice, brokered, and through the server with TLS. Ratios are to the driver itself in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench._lab import KERNELS, program, real_card
from bench._report import Report, machine_facts
from tests.gpu.limits import CAP_BYTES, FRAMEWORKS, GIB

from calabash.adapters.gpu.library import simulated_environment

CALABASH = str(Path(sys.executable).with_name("calabash"))
WAYS = {
    "slice": ("run", "--wait", "60s", "--memory", "4GiB"),
    "brokered": ("run", "--wait", "60s", "--isolation", "brokered", "--memory", "4GiB"),
    "remote": ("run", "--remote", "--wait", "60s", "--memory", "4GiB"),
}
COPY = f"{(64 << 20) >> 10}"  # of bench/programs/remote_calls: KiB


class Site:
    """A pool with a server, and a client that knows it."""

    def __init__(self, directory: Path) -> None:
        self.home, self.far = directory / "home", directory / "far"
        self.far.mkdir()
        self.options: tuple[str, ...] = ()
        if not real_card():
            self.calabash("sim", "create", "lab", "--gpus", "A100-40GB")
            self.options = ("--sim", "lab")

    def environment(self, home: Path) -> dict[str, str]:
        own = {"CALABASH_HOME": str(home), "HOME": str(home), "CALABASH_CONSOLE": "off"}
        return {k: v for k, v in os.environ.items() if not k.startswith("CALABASH_")} | own

    def calabash(self, *words: str, far: bool = False, timeout_s: float = 120) -> str:
        """Return the output of a command. Raises RuntimeError with its error output."""
        done = subprocess.run(
            [CALABASH, *words],
            env=self.environment(self.far if far else self.home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"calabash {' '.join(words)}: exit {done.returncode}: {done.stderr[-500:].strip()}")
        return done.stdout

    def up(self) -> None:
        self.calabash("up", *self.options)
        self.calabash("remote", "server", "up", "--listen", "127.0.0.1:0", "--name", "lab01")
        token = self.far / "token"
        token.touch(mode=0o600)
        token.write_text(self.calabash("remote", "server", "token", "create", "checks", "--gpus", "1"))
        address = (self.home / "server" / "address").read_text().strip()
        self.calabash("remote", "add", address, "--token", str(token), far=True)

    def down(self) -> None:
        for words in (("remote", "server", "down", "--force"), ("down", "--force")):
            subprocess.run([CALABASH, *words], env=self.environment(self.home), capture_output=True, check=False)

    def run(self, way: str, *command: str, options: tuple[str, ...] = ()) -> str:
        """Run a program by a way of ``WAYS``; ``local`` is the driver itself."""
        if way == "local":
            return self._on_the_driver(*command)
        return self.calabash(*(WAYS[way] + options), "--", *command, far=way == "remote", timeout_s=240)

    def _on_the_driver(self, *command: str) -> str:
        environment = self.environment(self.home)
        if self.options:
            environment |= simulated_environment(self.home / "sim" / "lab" / "node.state")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]}: exit {done.returncode}: {done.stderr[-500:].strip()}")
        return done.stdout


def check_costs(report: Report, site: Site, count: int) -> None:
    """Measure launches, calls and copies as ratios to the driver itself."""
    calls = (str(program("remote_calls")), "--kernels", str(KERNELS), "--rounds", "30")
    rounds: list[dict[str, dict[str, Any]]] = [
        {way: json.loads(site.run(way, *calls)) for way in ("local", *WAYS)} for _ in range(count)
    ]
    for way in WAYS:
        for what, name, unit in (
            ("launches_s", "launches done", "of local"),
            (f"in_{COPY}", "64 MiB in", "of local"),
            (f"out_{COPY}", "64 MiB out", "of local"),
        ):
            ratio = statistics.median(float(one[way][what]) / float(one["local"][what]) for one in rounds)
            report.add(f"{way}: {name}", ratio, unit)
        asked = statistics.median(float(one[way]["question_us"]) for one in rounds)
        report.add(f"{way}: question", asked, "us", at_most=10 if way == "brokered" else None)
    launch = statistics.median(float(one["remote"]["launch_ns"]) for one in rounds)
    report.add("remote: launch to its caller", launch, "ns", at_most=1000)


def check_memory(report: Report, site: Site) -> None:
    """Check a program behind a worker that allocates all it can."""
    for way in ("brokered", "remote"):
        words = site.run(way, str(program("hammer")), "--fill", options=("--memory", f"{CAP_BYTES >> 30}GiB"))
        result = json.loads(words.splitlines()[-1])
        report.add(f"{way}: memory over the cap", max(0, result["most_bytes"] - CAP_BYTES), "bytes", at_most=0)
        report.add(f"{way}: refusals at the cap", result["denied"], "calls", at_least=1)


def check_torch(report: Report, site: Site, python: str) -> None:
    """Check PyTorch in a slice and through the server.

    NVIDIA's runtime library asks its driver for its identity and may refuse one behind a worker. A refusal is reported and is
    no failure.
    """
    rates: dict[str, float] = {}
    for way in ("slice", "remote"):
        try:
            words = site.run(way, python, "-c", FRAMEWORKS["torch"])
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            report.fact(f"torch, {way}", str(error)[-300:].replace("\n", " "))
            continue
        result = json.loads(words.splitlines()[-1])
        rates[way] = result["rate"]
        report.add(f"torch, {way}: over its cap", max(0, result["most"] - 4 * GIB), "bytes", at_most=0)
    if len(rates) == 2:
        report.add("torch, remote: matrix products", rates["remote"] / rates["slice"], "of a slice", at_least=0.9)


def main() -> int:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--torch", metavar="PYTHON", help="the Python that has PyTorch")
    options = parser.parse_args()
    report = Report(name="remote", title="Checks of remote cards")
    machine_facts(report)
    with tempfile.TemporaryDirectory(prefix="calabash-gpu-") as directory:
        site = Site(Path(directory))
        try:
            site.up()
            check_costs(report, site, 1 if options.quick else 3)
            check_memory(report, site)
            if options.torch:
                check_torch(report, site, options.torch)
        finally:
            site.down()
    if options.json:
        options.json.write_text(report.json_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
