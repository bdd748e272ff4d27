"""Plot of an experiment: the allocation of each policy by arrived demand, the differences of policies, and every seed.

The curves of good policies differ by a fraction of a percentage point and cover each other. Therefore curves have different
line patterns and colours, a second panel shows the difference from the first policy, and a third panel has one dot per seed.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from calabash.model.extras import require
from calabash.sim.results import RunResult

# Distinguishable with any colour vision (Okabe and Ito), and by pattern in print.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_PATTERNS = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
_FROM_PERCENT = 80  # arrived demand at which the curves begin: everything fits before


def label(policy: str, load: float) -> str:
    """Return the label of a policy in tables and plots: its name and the load; ``load`` 0 is left out."""
    return f"{policy} at {load:g}" if load else policy


def require_library() -> None:
    """Raise CalabashError(UNSUPPORTED) if matplotlib, which plots need, is not installed."""
    require("reports")


def plot(results: Sequence[RunResult], kind: str) -> bytes:
    """Return the plot as an image.

    Args:
        kind: ``png`` or ``svg``.

    Raises:
        CalabashError(UNSUPPORTED): matplotlib is not installed.
    """
    require_library()
    import matplotlib  # noqa: PLC0415 - an optional extra

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    groups: dict[str, list[RunResult]] = {}
    for result in results:
        groups.setdefault(label(result.policy, result.load), []).append(result)
    curved = all(len(result.curve) > _FROM_PERCENT for result in results)
    if curved and len(groups) > 1:
        figure, axes = pyplot.subplot_mosaic(
            [["curves", "curves"], ["distance", "seeds"]], figsize=(10, 8), height_ratios=(3, 2)
        )
        _distances(axes["distance"], groups)
    elif curved:
        figure, axes = pyplot.subplot_mosaic([["curves", "seeds"]], figsize=(10, 4.5), width_ratios=(3, 1))
    else:
        figure, axes = pyplot.subplot_mosaic([["seeds"]], figsize=(8, 1.5 + 0.5 * len(groups)))
    if curved:
        _curves(axes["curves"], groups)
    _seeds(axes["seeds"], groups)
    for panel in axes.values():
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    sink = io.BytesIO()
    figure.savefig(sink, format=kind, bbox_inches="tight", dpi=120, metadata={"Date": None} if kind == "svg" else None)
    pyplot.close(figure)
    return sink.getvalue()


def _style(number: int) -> dict[str, Any]:
    """Return the line style of the n-th policy. Later lines are thinner, so that lines below them stay visible."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "linestyle": _PATTERNS[number % len(_PATTERNS)],
        "linewidth": max(1.2, 3.0 - 0.6 * number),
    }


def _columns(runs: Sequence[RunResult]) -> list[list[float]]:
    """Return, for each percent of arrived demand, a list of the allocation in percent of every seed."""
    return [[100 * value for value in values] for values in zip(*(run.curve for run in runs), strict=False)]


def _mean(runs: Sequence[RunResult]) -> list[float]:
    return [sum(values) / len(values) for values in _columns(runs)]


def _curves(panel: Any, groups: dict[str, list[RunResult]]) -> None:
    lowest = 100.0
    for number, (name, runs) in enumerate(groups.items()):
        columns = _columns(runs)
        demand = range(_FROM_PERCENT, len(columns))
        panel.plot(demand, _mean(runs)[_FROM_PERCENT:], label=name, **_style(number))
        shown = columns[_FROM_PERCENT:]
        panel.fill_between(
            demand, [min(c) for c in shown], [max(c) for c in shown], color=_COLOURS[number % len(_COLOURS)], alpha=0.12
        )
        lowest = min(lowest, *(min(c) for c in shown))
    panel.set_ylim(max(0.0, lowest - 1), 100)
    panel.set_xlabel("arrived demand, % of the cluster")
    panel.set_ylabel("allocated, % of the cluster")
    panel.set_title("mean of the seeds; the shaded area spans the worst and the best seed", fontsize=10, loc="left")
    panel.legend(loc="lower right")


def _distances(panel: Any, groups: dict[str, list[RunResult]]) -> None:
    (reference, first), *others = groups.items()
    base = _mean(first)
    panel.axhline(0, **_style(0))
    for number, (_, runs) in enumerate(others, 1):
        differences = [value - reference_value for value, reference_value in zip(_mean(runs), base, strict=False)]
        panel.plot(range(_FROM_PERCENT, len(differences)), differences[_FROM_PERCENT:], **_style(number))
    panel.set_xlabel("arrived demand, % of the cluster")
    panel.set_ylabel("points")
    panel.set_title(f"distance to {reference}", fontsize=10, loc="left")


def _seeds(panel: Any, groups: dict[str, list[RunResult]]) -> None:
    for number, runs in enumerate(groups.values()):
        values = [100 * run.allocation_ratio_end for run in sorted(runs, key=lambda run: run.seed)]
        colour = _COLOURS[number % len(_COLOURS)]
        spread = [number + 0.3 * (i / max(1, len(values) - 1) - 0.5) for i in range(len(values))]
        panel.scatter(values, spread, color=colour, alpha=0.6, s=22, linewidths=0)
        mean = sum(values) / len(values)
        panel.plot([mean, mean], [number - 0.3, number + 0.3], color=colour, linewidth=2)
        panel.annotate(f"{mean:.2f}", (mean, number + 0.33), ha="center", va="top", fontsize=8)
    panel.set_yticks(range(len(groups)), list(groups))
    panel.set_ylim(len(groups) - 0.4, -0.6)
    panel.set_xlabel("allocated at the end, %")
    panel.set_title("every seed, and the mean", fontsize=10, loc="left")
