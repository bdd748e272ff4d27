"""``calabash run`` in the command tree: its help, its completion and what wrong usage is answered with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from calabash.cli import ask
from calabash.cli.run import start


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(ask.OPTIONS):
        command = click.option(option.flag, option.field, multiple=True, metavar=option.metavar, help=option.text)(
            command
        )
    return command


@click.command(context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]})
@_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(command: tuple[str, ...], **given: tuple[str, ...]) -> None:
    """Run COMMAND on a slice of a GPU and end with its exit code.

    \b
    calabash run --memory 8GiB --cores 30 -- python train.py
    calabash run --gpus 2 --mode exclusive -- ./a.out
    """
    start({option.flag: given[option.field] for option in ask.OPTIONS}, command)
