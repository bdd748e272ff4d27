"""Tests of experiments: protocols, parallel runs with resume, reports and bounds."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calabash.model.errors import CalabashError
from calabash.sched.cluster.shape import WHOLE_MILLI
from calabash.sched.cluster.spec import NodeSpec
from calabash.sched.policies.registry import policy_named
from calabash.sim import arrivals, churn, generate, plots, report, runner
from calabash.sim.bound import arrivals_bound
from calabash.sim.results import RunResult, from_plain, summarise, to_plain
from calabash.sim.workload import Workload

NODES: list[NodeSpec] = generate.cluster(40, seed=1)
WORKLOAD: Workload = generate.workload(300, seed=1)
INSTALLED_MILLI = WHOLE_MILLI * sum(len(node.gpus) for node in NODES)


def timeless(result: RunResult) -> RunResult:
    """Return the result without the fields that depend on the machine."""
    return replace(result, decisions_per_s=0.0)


def test_arrivals_are_the_shuffled_trace_inflated_to_130_percent() -> None:
    order = arrivals.arrival_order(WORKLOAD, INSTALLED_MILLI, seed=42)
    asked = [request.shape.gpu_total_milli for request in WORKLOAD.requests]
    assert sorted(order[: len(asked)]) == list(range(len(asked)))
    total = sum(asked[index] for index in order)
    assert 1.3 * INSTALLED_MILLI - 8 * WHOLE_MILLI <= total <= 1.3 * INSTALLED_MILLI + 7 * WHOLE_MILLI
    assert order == arrivals.arrival_order(WORKLOAD, INSTALLED_MILLI, seed=42)
    assert order != arrivals.arrival_order(WORKLOAD, INSTALLED_MILLI, seed=43)


def test_trace_beyond_130_percent_loses_requests() -> None:
    order = arrivals.arrival_order(WORKLOAD, INSTALLED_MILLI // 4, seed=1)
    assert len(order) < len(WORKLOAD.requests)
    assert len(set(order)) == len(order)
    asked = sum(WORKLOAD.requests[index].shape.gpu_total_milli for index in order)
    assert asked <= 1.3 * (INSTALLED_MILLI // 4)


def test_equal_seeds_give_equal_results_and_results_are_ratios() -> None:
    policy = policy_named("pgb", demand=WORKLOAD.demand)
    one, other = (arrivals.simulate(NODES, WORKLOAD, policy, 42) for _ in range(2))
    assert timeless(one) == timeless(other)
    assert 0.8 < one.allocation_ratio_end <= 1.0
    assert one.allocation_ratio_at_100 <= one.allocation_ratio_end
    assert 0 <= one.cpu_only_admitted_ratio <= 1
    assert list(one.curve) == sorted(one.curve)
    assert one.decisions_per_s > 0


def test_priced_gaps_beat_fgd_and_fgd_beats_random_on_a_generated_trace() -> None:
    def mean(name: str) -> float:
        runs = [
            arrivals.simulate(NODES, WORKLOAD, policy_named(name, demand=WORKLOAD.demand, seed=seed), seed)
            for seed in (42, 43, 44)
        ]
        return float(np.mean([run.allocation_ratio_end for run in runs]))

    assert mean("pgb") >= mean("fgd") > mean("random")


def test_no_policy_exceeds_the_linear_programming_bound() -> None:
    bound = arrivals_bound(NODES, WORKLOAD, 42)
    run = arrivals.simulate(NODES, WORKLOAD, policy_named("pgb", demand=WORKLOAD.demand), 42)
    assert bound.free >= run.allocation_ratio_end
    assert bound.free <= 1.0 + 1e-9


def test_departures_are_deterministic_and_defragmentation_refuses_fewer_large_requests() -> None:
    policy = policy_named("pgb", demand=WORKLOAD.demand)
    small = NODES[:15]
    plain = churn.simulate(small, WORKLOAD, policy, 1, load=0.95, defragment=False)
    again = churn.simulate(small, WORKLOAD, policy, 1, load=0.95, defragment=False)
    moving = churn.simulate(small, WORKLOAD, policy, 1, load=0.95, defragment=True)
    assert timeless(plain) == timeless(again)
    assert plain.moves_per_100_arrivals == 0
    assert moving.rejected_8gpu_ratio <= plain.rejected_8gpu_ratio
    assert 0.5 < plain.allocation_ratio_end < 1.0


def test_load_that_is_not_positive_is_refused() -> None:
    with pytest.raises(CalabashError, match="load"):
        churn.simulate(NODES, WORKLOAD, policy_named("bestfit"), 1, load=0.0, defragment=False)


def experiment(**changes: object) -> runner.Experiment:
    """Return an experiment with two policies and two seeds on a small cluster."""
    plain = runner.Experiment(nodes=NODES[:10], workload=WORKLOAD, policies=("bestfit", "random"), seeds=(42, 43))
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_interrupted_experiment_continues_where_it_stopped(tmp_path: Path) -> None:
    partial = runner.partial_path(tmp_path / "out.json")
    whole = [timeless(result) for result in runner.run(experiment())]
    seen: list[int] = []

    def interrupt(done: int, total: int, result: RunResult | None) -> None:
        assert total == 4
        if result is not None and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run(experiment(), progress=interrupt, partial=partial)
    assert len(partial.read_text().splitlines()) == 2
    partial.write_text(partial.read_text() + '{"experiment": "cut by a cra')
    resumed = runner.run(experiment(), progress=lambda done, _t, _r: seen.append(done), partial=partial)
    assert seen == [2, 3, 4]
    assert [timeless(result) for result in resumed] == whole


def test_saved_runs_of_another_experiment_are_ignored(tmp_path: Path) -> None:
    partial = runner.partial_path(tmp_path / "out.json")
    runner.run(experiment(seeds=(42,)), partial=partial)
    seen: list[int] = []
    runner.run(experiment(nodes=NODES[:11]), progress=lambda done, _t, _r: seen.append(done), partial=partial)
    assert seen[0] == 0


def test_parallel_runs_give_the_same_results() -> None:
    one = [timeless(result) for result in runner.run(experiment(), jobs=1)]
    two = [timeless(result) for result in runner.run(experiment(), jobs=2)]
    assert one == two


def test_unknown_policy_is_refused_before_the_first_run() -> None:
    with pytest.raises(CalabashError, match="magic"):
        runner.run(experiment(policies=("bestfit", "magic")))


@pytest.mark.parametrize(("text", "seeds"), [("42-44", (42, 43, 44)), ("1,7-8,1", (1, 7, 8)), ("5", (5,))])
def test_seeds_are_parsed_from_ranges_and_lists(text: str, seeds: tuple[int, ...]) -> None:
    assert runner.parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "5-", "9-3", "1-99999999", "-4"])
def test_invalid_seeds_are_refused(text: str) -> None:
    with pytest.raises(CalabashError, match="seeds"):
        runner.parse_seeds(text)


def test_results_are_the_same_after_json_and_are_summarised_per_policy() -> None:
    results = runner.run(experiment())
    assert [from_plain(json.loads(json.dumps(to_plain(result)))) for result in results] == results
    summaries = {summary.policy: summary for summary in summarise(results)}
    assert set(summaries) == {"bestfit", "random"}
    assert summaries["bestfit"].seeds == (42, 43)
    mean = np.mean([r.allocation_ratio_end for r in results if r.policy == "bestfit"])
    assert summaries["bestfit"].mean["allocation_ratio_end"] == pytest.approx(mean)


def test_reports_of_all_formats_have_every_policy() -> None:
    results = runner.run(experiment())
    assert all(name in report.table(results) for name in ("bestfit", "random"))
    document = json.dumps(report.document(results))
    for key in ("allocation_ratio_end", "allocation_ratio_at_100", "cpu_only_admitted_ratio", "decisions_per_s"):
        assert key in document
    page = report.html(results, "calabash sim openb --nodes 'a & b.csv'")
    assert "<html" in page
    assert 'src="http' not in page
    assert plots.plot(results, "svg").lstrip().startswith(b"<?xml")
    assert plots.plot(results, "png").startswith(b"\x89PNG")


def test_html_report_has_command_seeds_and_legend() -> None:
    results = runner.run(experiment())
    page = report.html(results, "calabash sim openb --nodes 'a & b.csv'")
    assert "<pre>calabash sim openb --nodes &#x27;a &amp; b.csv&#x27;</pre>" in page
    assert "seeds 42, 43" in page
    headings = set(re.findall(r"<th>(.*?)</th>", page)) - {"policy"}
    assert headings
    assert headings <= set(re.findall(r"<dt>(.*?)</dt>", page))
    (deviation,) = {s.deviation["allocation_ratio_end"] for s in summarise(results) if s.policy == "random"}
    assert f"<small>± {100 * deviation:.2f}</small>" in page


def test_plot_shows_every_policy_every_seed_and_the_distances() -> None:
    results = runner.run(experiment())
    picture = plots.plot(results, "svg").decode()
    assert "<!-- distance to bestfit -->" in picture
    seeds_panel = picture[picture.index('id="PathCollection_1"') :]
    assert seeds_panel.count("<use ") >= len(results)
    alone = plots.plot([r for r in results if r.policy == "random"], "svg").decode()
    assert "distance" not in alone
    assert "every seed" in alone
