"""``calabash run`` in the command tree: its help, completion and usage errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from calabash.cli.run import options as run_options
from calabash.cli.run.become import start
from calabash.model.errors import CalabashError


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(run_options.OPTIONS):
        command = click.option(option.flag, option.field, multiple=True, metavar=option.metavar, help=option.text)(
            command
        )
    return command


@click.command(context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]})
@_options
@click.option("-q", "--quiet", is_flag=True, help="Print neither the granted allocation nor the reason of waiting.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Print the granted allocation even if standard error is not a terminal."
)
@click.option("--remote", is_flag=True, help="Use devices of another machine; see `calabash remote`.")
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="TERMS",
    help="With --remote: use matching devices only, such as 'memory>=40GiB,model~A100'.",
)
@click.option(
    "--server", "servers", multiple=True, metavar="NAME", help="With --remote: use this server; repeat for several."
)
@click.option(
    "--lease", default="", metavar="ID", help="With --remote: use a reservation of `calabash remote reserve`."
)
@click.option("--span", is_flag=True, help="With --remote: use several servers if one has too few devices.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(command: tuple[str, ...], **given: Any) -> None:
    """Run COMMAND on a slice of a GPU and end with its exit code.

    \b
    calabash run --memory 8GiB -- python train.py
    calabash run --memory 8GiB --cores 30 -- python train.py
    calabash run --gpus 2 --mode exclusive -- ./a.out
    calabash run --remote --gpus 2 --memory 20GiB -- python train.py
    """  # noqa: D301 - click reads the backspace
    words = {option.flag: given[option.field] for option in run_options.OPTIONS}
    far = {name: given[name] for name in ("filters", "servers", "lease", "span")}
    if given["remote"]:
        from calabash.cli.run.remote_run import start_remote  # noqa: PLC0415 - not needed by a local run

        start_remote(words, command, **far, quiet=given["quiet"])
    if any(far.values()):
        named = {"filters": "--filter", "servers": "--server", "lease": "--lease", "span": "--span"}
        asked = next(named[name] for name, value in far.items() if value)
        raise CalabashError(f"{asked} requires --remote", hint=f"add --remote, or omit {asked}")
    said = {run_options.QUIET: given["quiet"], run_options.VERBOSE: given["verbose"]}
    start(words | {flag: ("1",) for flag, value in said.items() if value}, command)
