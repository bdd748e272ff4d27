"""Results for people and programs: a text table, JSON, plots, and one self-contained HTML page."""

from __future__ import annotations

import base64
import html as markup
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from calabash.model.errors import CalabashError, Reason
from calabash.sim.results import RunResult, Summary, summarise, to_plain

_PERCENT = (
    ("end", "allocation_ratio_end"),
    ("at 100%", "allocation_ratio_at_100"),
    ("cpu-only in", "cpu_only_admitted_ratio"),
    ("wish in", "constrained_admitted_ratio"),
    ("8-GPU out", "rejected_8gpu_ratio"),
)


def table(results: Iterable[RunResult]) -> str:
    """Means over seeds, one line per policy, percent; ``+-`` is the standard deviation of the first figure."""
    rows = [["workload", "protocol", "policy", "seeds", "end", "+-", *(n for n, _ in _PERCENT[1:]), "moves", "dec/s"]]
    for summary in summarise(results):
        mean = summary.mean
        protocol = summary.protocol + (f" {summary.load:g}" if summary.load else "")
        rows.append(
            [
                summary.workload,
                protocol,
                summary.policy,
                str(len(summary.seeds)),
                f"{100 * mean['allocation_ratio_end']:.2f}",
                f"{100 * summary.deviation['allocation_ratio_end']:.2f}",
                *(f"{100 * mean[key]:.2f}" for _, key in _PERCENT[1:]),
                f"{mean['moves_per_100_arrivals']:.2f}",
                f"{mean['decisions_per_s']:.0f}",
            ]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    text = 3  # columns of text stand left, figures right
    return "\n".join(
        "  ".join(
            c.ljust(w) if i < text else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def document(results: Sequence[RunResult]) -> dict[str, Any]:
    """A versioned object: every run, and means per policy."""
    return {
        "apiVersion": "calabash.dev/v1",
        "kind": "SimulationResult",
        "summary": [
            {
                "workload": s.workload,
                "protocol": s.protocol,
                "load": s.load,
                "policy": s.policy,
                "seeds": list(s.seeds),
                "mean": s.mean,
                "deviation": s.deviation,
            }
            for s in summarise(results)
        ],
        "runs": [to_plain(result) for result in results],
    }


def plot(results: Sequence[RunResult], kind: str) -> bytes:
    """Allocation over arrived demand as ``png`` or ``svg``; bars of the end value where there is no curve.

    Raises CalabashError when matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise CalabashError(
            "plots need matplotlib, which is not installed",
            reason=Reason.NOT_FOUND,
            hint="pip install calabash[report]",
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    by_policy: dict[str, list[RunResult]] = {}
    for result in results:
        by_policy.setdefault(f"{result.policy} {result.load:g}" if result.load else result.policy, []).append(result)
    if all(result.curve for result in results):
        for name, runs in by_policy.items():
            mean = [100 * sum(points) / len(points) for points in zip(*(run.curve for run in runs), strict=False)]
            axes.plot(range(len(mean)), mean, label=name)
        axes.set_xlabel("arrived demand, % of the cluster")
        axes.set_xlim(60, 130)
        axes.set_ylim(60, 100)
        axes.legend()
    else:
        axes.bar(
            list(by_policy), [100 * sum(r.allocation_ratio_end for r in rs) / len(rs) for rs in by_policy.values()]
        )
        axes.set_ylim(80, 100)
    axes.set_ylabel("allocated, %")
    axes.grid(alpha=0.3)
    sink = io.BytesIO()
    figure.savefig(sink, format=kind, bbox_inches="tight", dpi=120, metadata={"Date": None} if kind == "svg" else None)
    pyplot.close(figure)
    return sink.getvalue()


def html(results: Sequence[RunResult]) -> str:
    """One page with the table and a plot per workload; no reference to anything outside it."""
    sections = []
    for workload in dict.fromkeys(result.workload for result in results):
        chosen = [result for result in results if result.workload == workload]
        picture = base64.b64encode(plot(chosen, "svg")).decode()
        sections.append(
            f"<h2>{markup.escape(workload)}</h2>\n{_html_table(summarise(chosen))}\n"
            f'<img alt="allocation by policy" src="data:image/svg+xml;base64,{picture}">'
        )
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse}td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #ddd}"
        "td:first-child,th:first-child{text-align:left}img{max-width:100%}"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Placement</title>'
        f"<style>{style}</style></head><body><h1>Placement experiments</h1>\n{''.join(sections)}\n</body></html>\n"
    )


def _html_table(summaries: Sequence[Summary]) -> str:
    head = "".join(
        f"<th>{markup.escape(name)}</th>" for name in ("policy", "seeds", *(n for n, _ in _PERCENT), "moves")
    )
    body = "".join(
        f"<tr><td>{markup.escape(s.policy)}{f' at {s.load:g}' if s.load else ''}</td><td>{len(s.seeds)}</td>"
        + "".join(f"<td>{100 * s.mean[key]:.2f}</td>" for _, key in _PERCENT)
        + f"<td>{s.mean['moves_per_100_arrivals']:.2f}</td></tr>"
        for s in summaries
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def write(path: Path, content: str | bytes) -> None:
    """Write a result file whole or not at all."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CalabashError(
            f"cannot write {path}: {error.strerror}", reason=Reason.BAD_FILE, hint="check the folder and its free space"
        ) from error
