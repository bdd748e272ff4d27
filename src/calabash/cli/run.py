"""``calabash run``: ask for a slice, hold its lease, become the program.

The program takes over this process, so exit codes, signals, the terminal and job control are its own. What ties the
slice to the program is the lease: a shared lock on a file that every descendant inherits and that the kernel drops
when the last of them is gone, whatever way they go.
"""

from __future__ import annotations

import fcntl
import os
from typing import Any

import click

from calabash.cli.home import client
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import parse_duration_s, parse_memory_mib, parse_percent

_MERGED = ("LD_PRELOAD", "LD_LIBRARY_PATH")


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--gpus", type=click.IntRange(1, 64), default=1, show_default=True, help="Devices wanted.")
@click.option("--memory", metavar="SIZE", help="Device memory per device: 8GiB, 512MiB. Default: the whole device.")
@click.option("--cores", metavar="PERCENT", help="Compute share per device, 1 to 100. Default: 100.")
@click.option("--mode", metavar="MODE", default="", help="exclusive, vgpu, timeslice. Default: what the amounts say.")
@click.option(
    "--policy",
    type=click.Choice(["fixed", "burst", "best-effort"]),
    default="fixed",
    show_default=True,
    help="What the share means.",
)
@click.option("--model", "models", multiple=True, metavar="NAME", help="Only this device model; repeat for several.")
@click.option("--tenant", default="default", show_default=True, metavar="NAME", help="Who the slice is accounted to.")
@click.option("--queue", default="default", show_default=True, metavar="NAME", help="Line to wait in.")
@click.option("--priority", type=click.IntRange(-1000, 1000), default=0, show_default=True, help="Larger goes first.")
@click.option("--gang", default="", metavar="NAME", help="Start only when --gang-size members of NAME can start.")
@click.option(
    "--gang-size", type=click.IntRange(1, 100_000), default=1, metavar="N", help="Members the gang needs to start."
)
@click.option("--time", "run_time", metavar="TIME", help="Expected run time; lets it pass those it will not delay.")
@click.option("--wait", "wait", metavar="TIME", help="Wait so long for room: 60s, 10m. Default: do not wait.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(command: tuple[str, ...], memory: str | None, cores: str | None, wait: str | None, **options: Any) -> None:
    """Run COMMAND on a slice of a GPU and end with its exit code.

    \b
    calabash run --memory 8GiB --cores 30 -- python train.py
    calabash run --gpus 2 --mode exclusive -- ./a.out
    """
    wait_s = parse_duration_s(wait) if wait else 0.0
    body: dict[str, Any] = {
        **{name: options[name] for name in ("gpus", "mode", "policy", "tenant", "queue", "priority", "gang")},
        "gang_size": options["gang_size"],
        "models": list(options["models"]),
        "memory_mib": parse_memory_mib(memory) if memory else None,
        "cores": parse_percent(cores) if cores else 100,
        "command": list(command),
        "run_time_s": parse_duration_s(options["run_time"]) if options["run_time"] else 0.0,
        "wait_s": wait_s,
    }
    pool = client()
    granted = pool.post("/v1/allocations", body, timeout_s=wait_s + 30)
    try:
        _hold_lease(granted["lease"])
        pool.post(f"/v1/allocations/{granted['id']}/started", {"pid": os.getpid()}, timeout_s=30)
    except BaseException:
        pool.delete(f"/v1/allocations/{granted['id']}")
        raise
    _become(command, _environment(granted["environment"]))


def _hold_lease(path: str) -> None:
    """Take the shared lock on a descriptor that the program inherits."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise CalabashError(
            f"the slice was taken back before the program started ({error.strerror})",
            reason=Reason.CONFLICT,
            hint="try again",
        ) from error
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    os.set_inheritable(descriptor, True)


def _environment(granted: dict[str, str]) -> dict[str, str]:
    """The caller's environment with the slice's names on top; search paths are put in front of what was there."""
    environment = dict(os.environ)
    for name, value in granted.items():
        before = environment.get(name)
        environment[name] = f"{value}:{before}" if name in _MERGED and before else value
    return environment


def _become(command: tuple[str, ...], environment: dict[str, str]) -> None:
    """Replace this process; a program that cannot be started ends like a shell's: 127 not found, 126 not allowed."""
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - running a program is the command's purpose
    except FileNotFoundError:
        click.echo(f"error: {command[0]}: not found\nhint: check the path after --", err=True)
        raise SystemExit(127) from None
    except OSError as error:
        click.echo(f"error: {command[0]}: {error.strerror}\nhint: is it executable?", err=True)
        raise SystemExit(126) from None
