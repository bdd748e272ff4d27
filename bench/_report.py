"""Common parts of all benchmarks: options, one line per figure, and the JSON and Markdown forms of a run.

A benchmark is a module with ``def measure(report: Report) -> None`` and ``if __name__ == "__main__":
run(NAME, TITLE, measure)``. It adds figures as it finds them; each is printed at once as
``name  value unit  goal  ok|short``. A figure without a goal is for information. The exit code is 0 if the benchmark
could measure, whether or not goals are met.

Goals do not depend on the speed of the machine: a time or a rate that has a goal is given as a ratio to a reference measured
in the same run (:meth:`Report.add_ratio`, ``bench._reference``), and its absolute value is for information. An absolute time
keeps a goal only where a timer, a term or a poll interval sets it, or where it is virtual time; its ``detail`` says which.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value. ``ok`` is None without a goal; ``detail`` says in a few words how it was measured."""

    name: str
    value: float
    unit: str
    goal: str
    ok: bool | None
    detail: str = ""

    def line(self) -> str:
        """Return the line that a benchmark prints."""
        verdict = {None: "-", True: "ok", False: "short"}[self.ok]
        text = f"{self.name:<44} {format_value(self.value):>12} {self.unit:<8} {self.goal or '-':<12} {verdict}"
        return f"{text}  ({self.detail})" if self.detail else text


def format_value(value: float) -> str:
    """Return a number with four significant digits and thousands separators, without exponent."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3
    return f"{value:,.{digits}f}"


@dataclass(slots=True)
class Report:
    """Figures of one run. ``quick``: the whole benchmark must end within 45 s on two cores."""

    name: str
    title: str
    quick: bool = False
    figures: list[Figure] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        detail: str = "",
    ) -> Figure:
        """Record and print one figure. Give one bound at most; it is the goal."""
        goal, ok = "", None
        if at_most is not None:
            goal, ok = f"<= {format_value(at_most)}", value <= at_most
        elif at_least is not None:
            goal, ok = f">= {format_value(at_least)}", value >= at_least
        figure = Figure(name=name, value=value, unit=unit, goal=goal, ok=ok, detail=detail)
        self.figures.append(figure)
        print(figure.line(), flush=True)
        return figure

    def add_ratio(
        self,
        name: str,
        value: float | Sequence[float],
        reference: float | Sequence[float],
        unit: str,
        *,
        of: str,
        at_most: float | None = None,
        at_least: float | None = None,
        detail: str = "",
    ) -> Figure:
        """Record and print the ratio of a value to a reference measured in the same run.

        Args:
            name: of the figure.
            value: the measured value, or the values of alternating runs.
            reference: the reference, or one for each of these runs. A sequence gives the median of the pairwise ratios.
            unit: of the value and the reference; both, or their medians, are printed in the detail.
            of: name of the reference.
            at_most: goal for the ratio; or give ``at_least``.
            at_least: goal for the ratio.
            detail: added to the two absolute values.

        Raises:
            ValueError: if there is no reference greater than zero for each value.
        """
        values, references = _sequence(value), _sequence(reference)
        if not values or len(values) != len(references) or min(references) <= 0:
            raise ValueError(f"{name}: {len(values)} values need as many references greater than 0, got {references}")
        ratio = statistics.median(one / other for one, other in zip(values, references, strict=True))
        both = f"{format_value(statistics.median(values))} {unit}, {of} {format_value(statistics.median(references))} {unit}"
        detail = f"{both}; {detail}" if detail else both
        return self.add(name, ratio, "ratio", at_most=at_most, at_least=at_least, detail=detail)

    def fact(self, name: str, value: str) -> None:
        """Record a fact about the run that is no figure: the device, a seed, why a part was not measured."""
        self.facts[name] = value
        print(f"# {name}: {value}", flush=True)

    def json_text(self) -> str:
        """Return the report as JSON."""
        document = {
            "name": self.name,
            "title": self.title,
            "quick": self.quick,
            "facts": self.facts,
            "figures": [asdict(figure) for figure in self.figures],
        }
        return json.dumps(document, indent=1) + "\n"

    def markdown(self) -> str:
        """Return the report as Markdown."""
        lines = [f"# {self.title}", "", f"`uv run python -m bench.{self.name}{' --quick' if self.quick else ''}`", ""]
        lines += [f"* {name}: {value}" for name, value in self.facts.items()]
        lines += ["", "| figure | value | unit | goal | | how |", "|---|---:|---|---|---|---|"]
        for figure in self.figures:
            verdict = {None: "", True: "ok", False: "**short**"}[figure.ok]
            value = format_value(figure.value)
            lines.append(f"| {figure.name} | {value} | {figure.unit} | {figure.goal} | {verdict} | {figure.detail} |")
        return "\n".join(lines) + "\n"


def _sequence(value: float | Sequence[float]) -> Sequence[float]:
    """Return a single number as a sequence of one."""
    return value if isinstance(value, Sequence) else (value,)


def machine_facts(report: Report) -> None:
    """Record the facts about the machine: processor, kernel, versions."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    report.fact(
        "machine", f"{os.cpu_count()} cores, {model}, Linux {platform.release()}, Python {sys.version.split()[0]}"
    )
    report.fact("commit", commit or "unknown")
    report.fact("load before", f"{os.getloadavg()[0]:.2f} running processes on average over the last minute")


def save(report: Report, directory: Path) -> None:
    """Write NAME.json and NAME.md."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{report.name}.json").write_text(report.json_text())
    (directory / f"{report.name}.md").write_text(report.markdown())


def run(name: str, title: str, measure: Callable[[Report], None], arguments: Sequence[str] | None = None) -> None:
    """Run the command line of one benchmark."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=title)
    parser.add_argument("--quick", action="store_true", help="end within 45 s on two cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write NAME.json and NAME.md there")
    options = parser.parse_args(arguments)
    report = Report(name=name, title=title, quick=options.quick)
    began = time.monotonic()
    machine_facts(report)
    measure(report)
    report.fact("took", f"{time.monotonic() - began:.0f} s")
    if options.json:
        options.json.write_text(report.json_text())
    if options.save:
        save(report, options.save)
