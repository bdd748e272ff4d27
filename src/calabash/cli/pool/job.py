"""``calabash job``: start, list, show and stop commands that the pool runs for its users."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from calabash.api import endpoints
from calabash.cli import output
from calabash.cli.home import client
from calabash.cli.output import Column, command_line, dash
from calabash.cli.pool.view import age
from calabash.cli.run import options as run_options

_UNSEEN = re.compile(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]")  # control characters, which a terminal would interpret

COLUMNS = (
    Column(title="ID", text=lambda r: r["id"]),
    Column(title="STATE", text=lambda r: r["state"]),
    Column(title="EXIT", text=lambda r: dash(None if r["exit_code"] is None else str(r["exit_code"])), right=True),
    Column(title="TENANT", text=lambda r: r["tenant"]),
    Column(title="USER", text=lambda r: r["user"]),
    Column(title="QUEUE", text=lambda r: r["queue"], wide=True),
    Column(title="ALLOCATION", text=lambda r: dash(r["allocation"])),
    Column(title="AGE", text=age, right=True),
    Column(title="DIRECTORY", text=lambda r: dash(r["directory"]), wide=True),
    Column(title="COMMAND", text=command_line),
)


@click.group()
def job() -> None:
    """Run commands as jobs of the pool, and show their output."""


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(run_options.OPTIONS):
        command = click.option(option.flag, option.field, multiple=True, metavar=option.metavar, help=option.text)(
            command
        )
    return command


@job.command("start", context_settings={"allow_interspersed_args": False})
@_options
@click.option(
    "--directory", default="", metavar="PATH", help="Working directory. Default: the home directory of the account."
)
@output.option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def start(command: tuple[str, ...], directory: str, fmt: str, **given: Any) -> None:
    """Start COMMAND as a job on a slice, and print the job's ID.

    The job runs with your account on the pool's machine, without a terminal and without the variables of this environment.
    It waits up to a week for its slice, or as long as --wait gives. The command is not interpreted by a shell.

    \b
    calabash job start --memory 8GiB --cores 30 -- python3 train.py
    calabash job start --gpus 2 --directory /data/ann -- sh -c 'make && ./a.out'
    """  # noqa: D301 - click reads the backspace
    words = {option.flag: given[option.field] for option in run_options.OPTIONS}
    body = run_options.request(words, command) | {"command": list(command), "directory": directory}
    if not given["wait_s"]:
        del body["wait_s"]
    made = client().send(endpoints.CREATE_JOB, body=body)["job"]
    click.echo(output.document("Job", made, fmt) if fmt in ("json", "yaml") else made["id"])


@job.command("list")
@output.option
def list_jobs(fmt: str) -> None:
    """List jobs, newest first."""
    output.emit("JobList", client().send(endpoints.LIST_JOBS)["items"], COLUMNS, fmt)


@job.command("show")
@click.argument("name")
@output.option
def show(name: str, fmt: str) -> None:
    """Show a job and the last 64 KiB of its output."""
    found = client().send(endpoints.SHOW_JOB, name)
    output.emit("JobList", [found["job"]], COLUMNS, fmt)
    if fmt not in ("table", "wide"):
        return
    told = found["job"]
    if told["message"]:
        click.echo(f"{told['reason'] or told['state']}: {told['message']}")
    if found["output_bytes_before"]:
        click.echo(f"({found['output_bytes_before']} earlier bytes of output were discarded)")
    click.echo(_UNSEEN.sub("�", found["output"]), nl=not found["output"].endswith("\n"))


@job.command("stop")
@click.argument("name")
def stop(name: str) -> None:
    """Stop a job with SIGTERM, and with SIGKILL five seconds later. A job that has ended is deleted from the list."""
    stopped = client().send(endpoints.STOP_JOB, name)
    click.echo(f"{stopped['id']} {stopped['state']}")
