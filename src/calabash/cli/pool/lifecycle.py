"""``calabash up``, ``down``, ``status`` and ``login-link``: start and stop the pool daemon, and show it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import click

from calabash.adapters.host.children import AUTHORITIES, DATABASE, LIBRARIES, PACKAGES, become_module, start_module
from calabash.adapters.host.service_manager import NOTIFY_SOCKET
from calabash.api import endpoints
from calabash.cli import output
from calabash.cli.failure import print_on_stderr
from calabash.cli.home import client, home, own_client, uses_system_pool
from calabash.cli.pool.login import new_login_link
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import format_duration

NO_PROGRESS_S = 120.0  # the first step is reported when all modules are loaded, which takes long on a busy machine
SAID_AFTER_S = 3.0
_STEP = re.compile(r'event=starting step="?([^"\n]*)')
DAEMON = "calabash.pool.daemon"
INHERITED = (*DATABASE, *AUTHORITIES, *LIBRARIES, *PACKAGES)  # environment variables for the daemon and its children
# How the pool assigns processes to allocations.
MEMBERSHIP = {
    "kernel": "processes are assigned to slices by control groups",
    "lease": "processes are assigned to slices by a lock that they hold",
}


@click.command()
@click.option("--sim", metavar="NAME", help="Use a simulated node (see `calabash sim create`).")
@click.option(
    "--db", metavar="URL", help="Database, sqlite:///path or postgresql://...; default: a file in the pool's home."
)
@click.option(
    "--unmanaged",
    "on_unmanaged",
    type=click.Choice(["tell", "drain", "kill"]),
    default="tell",
    show_default=True,
    help="Policy for processes that use a device without a slice: report them, also drain the device, or kill them.",
)
@click.option(
    "--console",
    metavar="HOST:PORT",
    default="default",
    envvar="CALABASH_CONSOLE",
    help="Address of the console and the API, or off. Default: the address in pool.toml, else 127.0.0.1:7432.",
)
@click.option(
    "--insecure", is_flag=True, help="Allow an address that other machines can reach to be served without TLS."
)
@click.option("--foreground", is_flag=True, help="Run in the foreground, attached to the terminal.")
def up(*, sim: str | None, db: str | None, on_unmanaged: str, console: str, insecure: bool, foreground: bool) -> None:
    """Start the pool of this machine, with its real devices or with a simulated node."""
    directory = home()
    _check(directory, sim, console)
    if not sim and uses_system_pool():
        click.echo(
            "warning: root's pool already serves the devices of this machine; this is a second pool for them", err=True
        )
    words = ["--home", str(directory), "--unmanaged", on_unmanaged, "--console", console]
    words += ["--insecure"] if insecure else []
    words += ["--sim", sim] if sim else []
    url = _absolute(db) if db else ""
    if foreground:
        become_module(DAEMON, *words, *(["--db", url] if url else []), inherit=(*INHERITED, NOTIFY_SOCKET))
    if url:
        # A URL may carry a password; a daemon's command line can be read by every user, and its environment too.
        words += ["--db", "-"]
    log = directory / "pool.log"
    with _log_of(directory) as sink:
        start = sink.tell()
        process = start_module(
            DAEMON,
            *words,
            inherit=INHERITED,
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=sink,
            new_session=True,
            urgent=True,
        )
    if process.stdin:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{url}\n".encode())
            process.stdin.close()
    _wait_until_ready(process, log, start)
    pool = own_client()
    status = pool.send(endpoints.SHOW_STATUS)
    count = f"{status['devices']} device{'' if status['devices'] == 1 else 's'}"
    click.echo(f"pool is up: {count}, {served_node(status)}, pid {status['pid']}")
    if status["console"]:
        click.echo(f"console: {new_login_link(pool, status['console'])}")
    elif status["console_failure"]:
        click.echo(f"no console: {status['console_failure']}")


def _check(directory: Path, sim: str | None, console: str) -> None:
    """Check the options and the free disk space, before the start, which takes seconds. Raises CalabashError."""
    from calabash.platform.home.directory import require_own, require_room  # noqa: PLC0415 - slow to import, and only here

    if os.path.lexists(directory):
        require_own(directory)
    if console not in ("default", "off"):
        from calabash.api.gateway import checked_listen  # noqa: PLC0415
        from calabash.model.extras import require  # noqa: PLC0415

        require("console")
        checked_listen(console)
    if sim:
        from calabash.adapters.gpu.sim import find_node  # noqa: PLC0415

        find_node(directory, sim)
    require_room(directory)


def _log_of(directory: Path) -> BinaryIO:
    from calabash.platform.home.directory import open_log  # noqa: PLC0415 - slow to import, and only here

    return open_log(directory)


def _absolute(url: str) -> str:
    """Return the URL of a database with an absolute path instead of a relative one.

    The daemon runs in another working directory than this command.
    """
    from calabash.adapters.store import absolute_url  # noqa: PLC0415 - SQLAlchemy is slow to import

    return absolute_url(url)


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path, start: int) -> None:
    """Wait until the daemon answers; raise the error that it printed if it ended instead.

    Raises TIMEOUT, and terminates the daemon, if it reports no further step of its start within NO_PROGRESS_S.

    Args:
        start: size of the log before the daemon was started, where its output begins.
    """
    begun = time.monotonic()
    deadline, step = begun + NO_PROGRESS_S, ""
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _with_what_runs(_failure(log, start, process.returncode))
        try:
            if own_client().send(endpoints.SHOW_STATUS, timeout_s=5)["pid"] == process.pid:
                return
        except CalabashError:
            pass
        reported = _last_step(log, start)
        if reported != step:
            step, deadline = reported, time.monotonic() + NO_PROGRESS_S
            if time.monotonic() - begun > SAID_AFTER_S:
                print_on_stderr(f"the pool is starting: {step}")  # keeps waiting if no process reads stderr any more
        time.sleep(0.02)
    process.terminate()
    raise CalabashError(
        f"the pool has reported no progress for {NO_PROGRESS_S:.0f}s, last step: {step or 'none'}",
        reason=Reason.TIMEOUT,
        hint=f"see {log}",
    )


def _last_step(log: Path, start: int) -> str:
    """Return the last step that the daemon has logged of its start; "" for none."""
    found = _STEP.findall(_text(log, start))
    return str(found[-1]) if found else ""


def _text(log: Path, start: int) -> str:
    """Return the text of the log from position ``start`` on, at most a mebibyte."""
    with log.open("rb") as source:
        source.seek(start)
        return source.read(1 << 20).decode(errors="replace")


def _with_what_runs(error: CalabashError) -> CalabashError:
    """Return the error; if a pool runs already, name the node of that pool in it.

    The user may have requested another node, for example a simulated one.
    """
    if error.reason is not Reason.POOL_RUNNING:
        return error
    try:
        status = own_client().send(endpoints.SHOW_STATUS, timeout_s=5)
    except CalabashError:
        return error
    return CalabashError(
        f"a pool already runs at {status['home']}, pid {status['pid']}, on {served_node(status)}",
        reason=error.reason,
        hint=error.hint,
    )


def served_node(status: Mapping[str, Any]) -> str:
    """Return the text that names the node of a pool, real or simulated, from the pool's status."""
    return f"simulated node {status['sim']}" if status.get("sim") else f"node {status.get('node')}"


def _failure(log: Path, start: int, code: int) -> CalabashError:
    """Return the error that the daemon printed to its log before it ended with exit code ``code``.

    The log has it as the lines ``error [reason]: message`` and ``hint: ...``.
    """
    lines = _text(log, start).splitlines()
    message, hint, reason = "", f"see {log}", Reason.CONFLICT
    for line in lines:
        if line.startswith("error"):
            head, _, message = line.partition(": ")
            code_text = head.removeprefix("error").strip(" []")
            reason = Reason(code_text) if code_text in set(Reason) else reason
        elif line.startswith("hint: "):
            hint = line.removeprefix("hint: ")
    if not message:
        from calabash.platform.home.directory import require_room  # noqa: PLC0415

        require_room(log.parent)  # where the disk is full the daemon cannot even write why it ended
    return CalabashError(message or f"the pool ended with exit code {code}", reason=reason, hint=hint)


@click.command()
@click.option("--force", is_flag=True, help="End running programs, and release their slices.")
@click.option(
    "--keep-programs", is_flag=True, help="Let running programs continue under their limits until the next `up`."
)
def down(*, force: bool, keep_programs: bool) -> None:
    """Stop the pool. Fails while programs hold slices, unless --force or --keep-programs is given.

    With --keep-programs, the next pool takes the running programs over, with complete accounts. Commands whose requests
    wait submit them to it again if it has their minor version.
    """
    if force and keep_programs:
        raise click.UsageError("--force and --keep-programs exclude each other")
    pool = client()
    status = pool.send(endpoints.SHOW_STATUS)
    pid = status["pid"]
    body = {"keep_programs": True} if keep_programs else {"force": force}
    pool.send(endpoints.SHUT_DOWN, body=body, timeout_s=30)
    deadline = time.monotonic() + 15
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    kept = status["allocations"] if keep_programs else 0
    click.echo(
        f"pool is down; {_count(kept, 'allocation')} kept until the next `calabash up`" if kept else "pool is down"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun} is" if number == 1 else f"{number} {noun}s are"


@click.command()
@output.option
def status(fmt: str) -> None:
    """Show the pool: its node, devices, allocations, driver, database and console."""
    body = client().send(endpoints.SHOW_STATUS)
    if fmt in ("json", "yaml"):
        click.echo(output.document("Status", body, fmt))
        return
    if fmt == "name":
        click.echo(body["node"])
        return
    rows = [
        ("pool", f"up for {format_duration(body['uptime_s'])}, pid {body['pid']}, version {body['version']}"),
        ("node", f"{body['node']}" + (f" (simulated: {body['sim']})" if body.get("sim") else "")),
        ("devices", str(body["devices"])),
        ("allocations", str(body["allocations"])),
        ("serves", f"{body['serves']}; {MEMBERSHIP.get(body['membership'], body['membership'])}"),
        ("driver", str(body.get("driver") or "-")),
        ("database", str(body["db"])),
        ("home", str(body["home"])),
        ("console", str(body["console"] or body["console_failure"] or "off")),
    ]
    for name, text in rows:
        click.echo(f"{name:<12}{text}")
