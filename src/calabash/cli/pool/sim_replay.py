"""``calabash sim openb``, ``trace``, ``scenario`` and ``snapshot``: run the scheduler on traces and scenarios."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from calabash.api import endpoints
from calabash.model.errors import CalabashError, Reason

if TYPE_CHECKING:
    from calabash.sched.cluster.spec import NodeSpec
    from calabash.sim.results import RunResult
    from calabash.sim.workload import Workload

PATH = click.Path(path_type=Path)


def _experiment_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.option(
                "--placement",
                "policy",
                default="pgb",
                show_default=True,
                metavar="LIST",
                help="Placement policies: pgb,fgd,bestfit,...",
            ),
            click.option(
                "--seeds", default="42-51", show_default=True, metavar="LIST", help="Seeds, such as 42-51 or 1,2,7-9."
            ),
            click.option("--churn", is_flag=True, help="Let requests end (Poisson arrivals, exponential lifetimes)."),
            click.option(
                "--load", type=float, help="Offered load divided by installed compute, with --churn. Default: 0.95."
            ),
            click.option(
                "--defrag", is_flag=True, help="Move running requests to make room for large ones, with --churn."
            ),
            click.option(
                "--node-failures",
                "failures",
                type=float,
                metavar="N",
                help="Node failures per 100 nodes and mean lifetime, with --churn.",
            ),
            click.option(
                "--jobs", type=click.IntRange(1, 256), help="Concurrent runs. Default: the number of processors."
            ),
            click.option("--results", "json_", type=PATH, metavar="FILE", help="Write every run and the means."),
            click.option("--html", type=PATH, metavar="FILE", help="Write one page with tables and plots."),
            click.option("--plot", type=PATH, metavar="FILE", help="Write a plot, .png or .svg."),
        )
    ):
        command = option(command)
    return command


@click.command()
@click.option("--nodes", type=PATH, required=True, metavar="FILE", help="Nodes, such as openb_node_list_gpu_node.csv")
@click.option("--pods", type=PATH, required=True, metavar="FILE", help="Requests, such as openb_pod_list_default.csv")
@_experiment_options
def openb(nodes: Path, pods: Path, **options: Any) -> None:
    """Replay the openb trace with the protocol of its published experiments."""
    from calabash.sim import openb as reader  # noqa: PLC0415

    _run(reader.read_nodes(nodes), reader.read_pods(pods), options)


@click.command()
@click.option("--nodes", type=PATH, required=True, metavar="FILE", help="Nodes, .csv or .jsonl")
@click.option(
    "--requests", "--pods", "requests", type=PATH, required=True, metavar="FILE", help="Requests, .csv or .jsonl"
)
@_experiment_options
def trace(nodes: Path, requests: Path, **options: Any) -> None:
    """Replay a trace of your own; see docs/reference/trace-format.md."""
    from calabash.sim import trace as reader  # noqa: PLC0415

    cluster = reader.read_nodes(nodes)
    _run(cluster, reader.read_requests(requests, cluster), options)


@click.command()
@click.argument("files", nargs=-1, required=True, type=PATH, metavar="FILE...")
@click.option("-q", "--quiet", is_flag=True, help="Print failures only.")
def scenario(files: tuple[Path, ...], quiet: bool) -> None:
    """Run scenario files and compare the decisions with the expected ones; exit code 1 if one differs."""
    from calabash import scenario as scenarios  # noqa: PLC0415

    failed = 0
    for path in files:
        result = scenarios.run_file(path)
        failed += not result.passed
        if not (quiet and result.passed):
            click.echo(f"{'ok  ' if result.passed else 'FAIL'}  {path}")
            click.echo(result.text())
    if failed:
        raise CalabashError(f"{failed} of {len(files)} scenarios differ", reason=Reason.CONFLICT)


@click.command()
@click.argument("file", required=False, type=PATH)
def snapshot(file: Path | None) -> None:
    """Write the state of the pool as a scenario to FILE or to standard output; `simulate scenario FILE` replays it."""
    from calabash.cli.home import client  # noqa: PLC0415

    text = client().send(endpoints.EXPORT_SCENARIO)["scenario"]
    if file is None:
        click.echo(text)
        return
    from calabash.sim import report  # noqa: PLC0415

    report.write(file, text)
    click.echo(str(file), err=True)


def _run(nodes: list[NodeSpec], workload: Workload, options: dict[str, Any]) -> None:
    """Run the experiment with a progress bar on stderr, print the table, and write the requested files."""
    from calabash.sim import plots, report, runner  # noqa: PLC0415
    from calabash.sim.failures import Failures  # noqa: PLC0415

    if not options["churn"] and (options["defrag"] or options["load"] is not None or options["failures"] is not None):
        raise CalabashError("--load, --defrag and --node-failures require --churn", hint="add --churn")
    experiment = runner.Experiment(
        nodes=nodes,
        workload=workload,
        policies=tuple(dict.fromkeys(name.strip() for name in options["policy"].split(","))),
        seeds=runner.parse_seeds(options["seeds"]),
        load=(0.95 if options["load"] is None else options["load"]) if options["churn"] else None,
        defragment=options["defrag"],
        failures=Failures(per_100_nodes=options["failures"]) if options["failures"] else None,
    )
    plot: Path | None = options["plot"]
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise CalabashError(f"{plot} ends in neither .png nor .svg", hint="write --plot out.svg, for example")
    for target in (options["json_"], options["html"], plot):
        if target is not None and not target.absolute().parent.is_dir():
            raise CalabashError(
                f"{target.absolute().parent} is not a directory", reason=Reason.NOT_FOUND, hint="create it first"
            )
        if target is not None and target.is_dir():
            raise CalabashError(f"{target} is a directory", hint="give the path of a file")
    if options["html"] or plot is not None:
        plots.require_library()
    partial = runner.partial_path(options["json_"]) if options["json_"] else None
    try:
        results = _with_progress(experiment, options["jobs"] or os.cpu_count() or 1, partial)
    except KeyboardInterrupt:
        kept = f"; completed runs are saved in {partial}, and the same command continues from there" if partial else ""
        click.echo(f"interrupted{kept}", err=True)
        raise SystemExit(130) from None
    click.echo(report.table(results))
    if options["json_"]:
        import json  # noqa: PLC0415

        report.write(options["json_"], json.dumps(report.document(results), indent=1) + "\n")
        if partial is not None:
            partial.unlink(missing_ok=True)
    if options["html"]:
        report.write(options["html"], report.html(results, shlex.join(["calabash", *sys.argv[1:]])))
    if plot is not None:
        report.write(plot, plots.plot(results, plot.suffix[1:]))


def _with_progress(experiment: Any, jobs: int, partial: Path | None) -> list[RunResult]:
    """Run the experiment with a progress bar if stderr is a terminal."""
    from calabash.sim import runner  # noqa: PLC0415

    with click.progressbar(
        length=len(experiment.tasks),
        label=experiment.protocol,
        show_pos=True,
        file=sys.stderr,
        hidden=not sys.stderr.isatty(),
    ) as bar:

        def show(done: int, _total: int, result: RunResult | None) -> None:
            bar.label = f"{result.policy} seed {result.seed}" if result else experiment.protocol
            bar.update(done - bar.pos)

        return runner.run(experiment, jobs=jobs, progress=show, partial=partial)
