"""``calabash demo``: run three tenants on one card for about twenty seconds and check every limit.

Starts a pool of its own on this machine's cards, or on a simulated node if there are none, and runs three programs that do
not know of the product. Shares and memory are those that the driver reports for each process; the verdict is computed from
them and from what the programs observed.
"""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from calabash.adapters.gpu.protocol import DriverOptions, GpuDriver
from calabash.adapters.gpu.vendors import open_driver
from calabash.cli.demo.interruption import Interruption
from calabash.cli.demo.own_pool import DemoPool
from calabash.cli.demo.tenants import NVML_ROUNDING_MIB, REQUESTS, TenantRun
from calabash.cli.live_view import LiveView, is_terminal
from calabash.cli.output import Column, table, terminal_width
from calabash.model.device import Device
from calabash.model.errors import CalabashError, Reason
from calabash.model.extras import require

if TYPE_CHECKING:
    from rich.console import Console

SECONDS = 18.0
SETTLE_S = 3.0
SAMPLE_S = 0.2
SAMPLES_PER_UPDATE = 5
PICTURE_COLUMNS = 110


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(min=SETTLE_S + 1),
    default=SECONDS,
    show_default=True,
    help="Run time of programs.",
)
@click.option("--simulated", is_flag=True, help="Use simulated cards even if this machine has real ones.")
@click.option("--svg", type=click.Path(path_type=Path), help="Save the terminal's content as a picture.")
def demo(seconds: float, simulated: bool, svg: Path | None) -> None:
    """Run three tenants on one card and check every limit.

    Uses a pool of its own, which ends with the demo: on the cards of this machine, or on simulated cards if there are none.
    The exit code is 1 if a limit did not hold.
    """
    if svg is not None:
        require("reports")
    said: list[str] = []

    def say(text: str) -> None:
        click.echo(text)
        said.append(text)

    say("$ calabash demo")
    with Interruption() as interruption, DemoPool() as pool:
        broken = _Demo(say=say, pool=pool, interruption=interruption, seconds=seconds).run(simulated=simulated)
    say("no process and no file of the demo is left")
    if svg is not None:
        _draw(said, svg)
    if broken:
        raise click.exceptions.Exit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demo:
    """The steps of the demo; ``seconds`` is the time for which the programs compute, ``say`` prints."""

    say: Callable[[str], None]
    pool: DemoPool
    interruption: Interruption
    seconds: float

    def run(self, *, simulated: bool) -> list[str]:
        """Start the pool and the programs, watch them, and print the verdict; return a sentence for each broken limit."""
        driver = None if simulated else _real_driver()
        if driver is None:
            self.say(f"{'' if simulated else 'no NVIDIA card here: '}using simulated cards, 2 x A100-40GB")
            driver = open_driver(options=DriverOptions(sim_state=self.pool.simulate()))
            simulated = True
        try:
            self.say(self.pool.up(simulated=simulated).rstrip("\n"))
            card = driver.devices()[0]
            runs = self._start(card, rounding_mib=0 if simulated else NVML_ROUNDING_MIB)
            self._watch(driver, card, runs)
        finally:
            driver.close()
        by_samples = simulated or all(run.is_sampled for run in runs)
        broken = [sentence for run in runs for sentence in run.broken_limits(by_samples=by_samples)]
        broken += [f"slice {name} was not released" for name in self.pool.unreleased()]
        requested = "/".join(str(run.cores_percent) for run in runs)
        measured = "/".join(f"{run.share_percent:.1f}" for run in runs)
        if broken:
            self.say(f"a limit was broken: {'; '.join(broken)}")
        elif by_samples:
            self.say(
                f"every limit held: shares requested {requested}, measured {measured} percent; "
                "no tenant above its memory limit; all slices released"
            )
        else:
            self.say(
                "no tenant above its memory limit; all slices released; shares were not checked: this driver attributes"
                " each period to one of the programs, so its samples are no shares"
            )
        return broken

    def _start(self, card: Device, *, rounding_mib: int) -> list[TenantRun]:
        """Start the tenants' programs; ``rounding_mib`` is what the driver may add to the memory of a process."""
        runs = []
        for request in REQUESTS:
            self.interruption.check()
            memory_mib, cores_percent = int(card.memory_mib * request.memory_fraction), request.cores_percent
            process = self.pool.run(request.tenant, memory_mib, cores_percent, self.seconds)
            runs.append(
                TenantRun(
                    name=request.tenant,
                    cores_percent=cores_percent,
                    memory_mib=memory_mib,
                    process=process,
                    rounding_mib=rounding_mib,
                )
            )
        return runs

    def _watch(self, driver: GpuDriver, card: Device, runs: Sequence[TenantRun]) -> None:
        """Observe the card, and show the table once a second, until all programs have ended."""
        began, since_us, rounds = time.monotonic(), int(time.time() * 1e6), 0
        with ExitStack() as stack:
            view = stack.enter_context(LiveView(sys.stdout, whole=False)) if is_terminal(sys.stdout) else None
            while any(run.running for run in runs):
                self.interruption.wait(SAMPLE_S)
                elapsed_s, rounds = time.monotonic() - began, rounds + 1
                used = {process.pid: process.used_bytes for process in driver.processes(card.uuid)}
                samples = driver.utilization(card.uuid, since_us)
                since_us = max([since_us, *(sample.at_us for sample in samples)])
                counted = SETTLE_S < elapsed_s < self.seconds
                shares = {sample.pid: float(sample.percent) for sample in samples} if counted else {}
                for run in runs:
                    run.observe(used, shares)
                if view is not None and rounds % SAMPLES_PER_UPDATE == 0:
                    view.update(_table(f"{card.model}, {elapsed_s:.0f}s", runs, terminal_width()))
        self.say(_table(f"{card.model}, after {time.monotonic() - began:.0f}s", runs))


def _real_driver() -> GpuDriver | None:
    """Open the driver of this machine's cards; None if there are none."""
    try:
        driver = open_driver()
    except CalabashError as error:
        if error.reason is not Reason.NO_DEVICES:
            raise
        return None
    if driver.devices():
        return driver
    driver.close()
    return None


def _table(title: str, runs: Sequence[TenantRun], width: int = 0) -> str:
    """Return the table of requested and measured amounts, one row per tenant, cut to ``width`` columns unless it is 0."""
    rows = [
        {
            "tenant": run.name,
            "share requested": f"{run.cores_percent}%",
            "share measured": f"{run.share_percent:.1f}%" if run.is_sampled else "-",
            "memory limit": f"{run.memory_mib} MiB",
            "memory used": f"{run.used_mib} MiB",
            "most used": f"{run.used_mib_max} MiB",
        }
        for run in runs
    ]
    return f"{title[: width or None]}\n{table(_COLUMNS, rows, width)}"


def _column(name: str) -> Column:
    return Column(title=name.upper(), text=lambda row: str(row[name]), right=name != "tenant")


_COLUMNS = tuple(
    _column(name)
    for name in ("tenant", "share requested", "share measured", "memory limit", "memory used", "most used")
)


def _draw(said: Sequence[str], path: Path) -> None:
    """Save what the demo has printed as a picture of a terminal."""
    from rich.console import Console  # noqa: PLC0415 - an optional extra

    console = Console(record=True, highlight=False, width=PICTURE_COLUMNS, file=io.StringIO())
    for text in said:
        console.print(text, markup=False)
    save_picture(console, path, "calabash demo")


def save_picture(console: Console, path: Path, title: str) -> None:
    """Save the terminal's content as an SVG without references to other files."""
    picture = console.export_svg(title=title)
    path.write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL))
