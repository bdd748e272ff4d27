"""Reports of simulation results: a text table, a JSON document, and a self-contained HTML page."""

from __future__ import annotations

import base64
import html as markup
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from calabash.model.errors import CalabashError, Reason
from calabash.sim.plots import label, plot
from calabash.sim.results import RunResult, Summary, summarise, to_plain

# heading, field of RunResult, unit, description
_COLUMNS = (
    (
        "end",
        "allocation_ratio_end",
        "%",
        "allocated fraction of the installed device compute after the last arrival",
    ),
    (
        "at 100%",
        "allocation_ratio_at_100",
        "%",
        "the same fraction when the requested compute first reaches the size of the cluster",
    ),
    ("cpu-only in", "cpu_only_admitted_ratio", "%", "admitted requests without devices"),
    ("model in", "constrained_admitted_ratio", "%", "admitted requests that name device models"),
    ("8-GPU out", "rejected_8gpu_ratio", "%", "rejected requests for eight devices"),
    ("moves", "moves_per_100_arrivals", "", "requests that defragmentation moved, per 100 arrivals"),
    ("killed", "killed_per_100_arrivals", "", "requests that failing nodes ended, per 100 arrivals"),
    ("dec/s", "decisions_per_s", "/s", "decisions of the scheduler per second, on the machine of this run"),
)
_IN_CHURN = "allocated fraction of the installed device compute, mean over the measured time"
_TEXT_COLUMNS = tuple(c for c in _COLUMNS if c[0] != "killed")
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child{text-align:left}td small{color:#777}img{width:100%}"
    "dl{display:grid;grid-template-columns:max-content auto;gap:.1rem 1rem;font-size:13px;color:#555}"
    "dt{font-weight:600}dd{margin:0}"
    "pre{background:#f4f4f4;padding:.6rem .8rem;overflow-x:auto;white-space:pre-wrap}"
)


def table(results: Iterable[RunResult]) -> str:
    """Return a text table of the means over seeds, one line per policy; ``+-`` is the standard deviation of column "end"."""
    end, *others = _TEXT_COLUMNS
    rows = [["workload", "protocol", "policy", "seeds", end[0], "+-", *(name for name, *_ in others)]]
    for summary in summarise(results):
        protocol = summary.protocol + (f" {summary.load:g}" if summary.load else "")
        rows.append(
            [
                summary.workload,
                protocol,
                summary.policy,
                str(len(summary.seeds)),
                _shown(summary.mean[end[1]], end[2]),
                _shown(summary.deviation[end[1]], end[2]),
                *(_shown(summary.mean[key], unit) for _, key, unit, _ in others),
            ]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    text = 3  # columns of text are left-aligned, numbers right-aligned
    return "\n".join(
        "  ".join(
            c.ljust(w) if i < text else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _shown(value: float, unit: str) -> str:
    return f"{100 * value:.2f}" if unit == "%" else f"{value:.0f}" if unit == "/s" else f"{value:.2f}"


def document(results: Sequence[RunResult]) -> dict[str, Any]:
    """Return the results as a JSON document: every run, and summaries per policy."""
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


def html(results: Sequence[RunResult], command: str = "") -> str:
    """Return an HTML page with a description of the experiment, and a table, a legend and a plot for each workload.

    The page is self-contained: it loads no other files.

    Args:
        command: command line of the run, shown at the top.
    """
    sections = []
    for workload in dict.fromkeys(result.workload for result in results):
        chosen = [result for result in results if result.workload == workload]
        picture = base64.b64encode(plot(chosen, "svg")).decode()
        sections.append(
            f"<h2>{markup.escape(workload)}</h2>\n<p>{_run_description(chosen)}</p>\n{_html_table(summarise(chosen))}\n"
            f'<img alt="allocation by policy" src="data:image/svg+xml;base64,{picture}">'
        )
    said = f"<pre>{markup.escape(command)}</pre>" if command else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Placement</title>'
        f"<style>{_STYLE}</style></head><body><h1>Placement experiments</h1>\n{said}\n{''.join(sections)}\n"
        f"<h2>Columns</h2>\n{_legend(churn=any(result.load for result in results))}\n</body></html>\n"
    )


def _run_description(results: Sequence[RunResult]) -> str:
    protocols = ", ".join(dict.fromkeys(r.protocol + (f" at load {r.load:g}" if r.load else "") for r in results))
    seeds = sorted({result.seed for result in results})
    named = ", ".join(map(str, seeds)) if len(seeds) <= 20 else f"{seeds[0]} to {seeds[-1]} ({len(seeds)} seeds)"
    return markup.escape(f"Protocol {protocols}; {results[0].arrivals:,} requests; seeds {named}.")


def _html_table(summaries: Sequence[Summary]) -> str:
    """Return the table of means and standard deviations over the seeds, without columns that are zero for all policies."""
    columns = [c for c in _COLUMNS if any(s.mean[c[1]] for s in summaries)]
    head = "".join(f"<th>{markup.escape(name)}</th>" for name in ("policy", *(name for name, *_ in columns)))
    body = "".join(
        f"<tr><td>{markup.escape(label(s.policy, s.load))}</td>"
        + "".join(
            f"<td>{_shown(s.mean[key], unit)} <small>± {_shown(s.deviation[key], unit)}</small></td>"
            for _, key, unit, _ in columns
        )
        + "</tr>"
        for s in summaries
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _legend(*, churn: bool) -> str:
    entries = [
        (name, f"{'percent: ' if unit == '%' else ''}{_IN_CHURN if churn and name == 'end' else text}")
        for name, _, unit, text in _COLUMNS
    ]
    entries.append(("±", "standard deviation over the seeds; columns that are zero throughout are not shown"))
    return "<dl>" + "".join(f"<dt>{markup.escape(n)}</dt><dd>{markup.escape(t)}</dd>" for n, t in entries) + "</dl>"


def write(path: Path, content: str | bytes) -> None:
    """Write a result file atomically. Raises CalabashError(BAD_FILE)."""
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
