"""``calabash service install``, ``uninstall`` and ``status``: run the pool of this machine by systemd."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from calabash.adapters.host.children import root_alone_writes, run_program
from calabash.adapters.pool.system import SYSTEM_HOME
from calabash.cli.service.unit import UNIT, unit_text
from calabash.model.errors import CalabashError, Reason

UNIT_FILE = Path("/etc/systemd/system") / UNIT
SYSTEMD_RUNS = Path("/run/systemd/system")  # exists if systemd started the machine
SYSTEMCTL_S = 360.0  # more than the unit's own limit of a start
_SHOWN = ("LoadState", "UnitFileState", "ActiveState", "SubState", "MainPID", "ActiveEnterTimestamp", "NRestarts")


@click.group()
def service() -> None:
    """Run the pool of this machine as a systemd service."""


@service.command()
@click.option(
    "--console", metavar="HOST:PORT", help="Address of the console and the API, or off. Default: as for `up`."
)
@click.option("--sim", metavar="NAME", help="Use a simulated node of root's home.")
@click.option("--no-start", is_flag=True, help="Write and enable the unit, but do not start the pool.")
@click.option("--dry-run", is_flag=True, help="Print the unit and change nothing.")
def install(console: str | None, sim: str | None, no_start: bool, dry_run: bool) -> None:
    """Write a systemd unit for the pool, enable it, and start it.

    The pool starts with the machine, is restarted after a failure, and logs to the journal. A new installation replaces
    the unit and restarts the pool; programs on slices continue meanwhile.
    """
    text = unit_text(
        [
            *(sys.executable, "-I", "-m", "calabash.cli.main", "up", "--foreground"),
            *(("--console", console) if console else ()),
            *(("--sim", sim) if sim else ()),
        ]
    )
    if dry_run:
        click.echo(text, nl=False)
        return
    _require_systemd()
    _require_roots_own_installation()
    UNIT_FILE.write_text(text)
    UNIT_FILE.chmod(0o644)
    click.echo(f"wrote {UNIT_FILE}")
    _systemctl("daemon-reload")
    _systemctl("enable", UNIT)
    if not no_start:
        _systemctl("restart", UNIT)
        click.echo(f"the pool runs; its log: journalctl -u {UNIT}")


@service.command()
def uninstall() -> None:
    """Stop the pool and remove its unit. The home of the pool, with its database, is kept."""
    _require_systemd()
    if not UNIT_FILE.exists():
        raise _not_installed()
    _systemctl("disable", "--now", UNIT)
    UNIT_FILE.unlink()
    click.echo(f"removed {UNIT_FILE}")
    _systemctl("daemon-reload")
    click.echo(f"{SYSTEM_HOME} is kept")


@service.command()
def status() -> None:
    """Show the state of the service. Fails if it is not installed or does not run."""
    _require_booted()
    if not UNIT_FILE.exists():
        raise _not_installed()
    found = dict(line.split("=", 1) for line in _output("show", UNIT, f"--property={','.join(_SHOWN)}").splitlines())
    rows = [
        ("unit", f"{UNIT_FILE}, {found.get('UnitFileState') or found.get('LoadState')}"),
        ("state", f"{found.get('ActiveState')} ({found.get('SubState')})"),
        ("since", found.get("ActiveEnterTimestamp") or "-"),
        ("pid", found.get("MainPID") or "-"),
        ("restarts", found.get("NRestarts") or "0"),
        ("log", f"journalctl -u {UNIT}"),
    ]
    for name, value in rows:
        click.echo(f"{name:<10}{value}")
    if found.get("ActiveState") != "active":
        raise CalabashError(f"{UNIT} does not run", reason=Reason.POOL_DOWN, hint=f"journalctl -u {UNIT} -e")


def _not_installed() -> CalabashError:
    return CalabashError(
        f"{UNIT_FILE} does not exist", reason=Reason.NOT_FOUND, hint="install it with `calabash service install`"
    )


def _require_systemd() -> None:
    """Raise CalabashError unless this user may manage services of this machine's systemd."""
    if os.geteuid() != 0:
        raise CalabashError(
            "only root can manage the service",
            reason=Reason.NOT_PERMITTED,
            hint="repeat it with sudo, or start a pool of your own with `calabash up`",
        )
    _require_booted()


def _require_booted() -> None:
    if not SYSTEMD_RUNS.is_dir():
        raise CalabashError(
            "systemd does not run on this machine",
            reason=Reason.UNSUPPORTED,
            hint="have your service manager run `calabash up --foreground`",
        )


def _require_roots_own_installation() -> None:
    """Raise NOT_PERMITTED if another user than root can change the program that root's service would run."""
    for path in (Path(sys.executable), Path(__file__)):
        if not root_alone_writes(path):
            raise CalabashError(
                f"{path} can be changed by other users than root",
                reason=Reason.NOT_PERMITTED,
                hint="install calabash for all users, for example into /opt/calabash",
            )


def _systemctl(*words: str) -> None:
    """Print a command of systemctl and run it. Raises CalabashError."""
    click.echo(f"systemctl {' '.join(words)}")
    _output(*words)


def _output(*words: str) -> str:
    try:
        done = run_program(["systemctl", *words], timeout_s=SYSTEMCTL_S)
    except subprocess.TimeoutExpired:
        raise CalabashError(
            f"systemctl {words[0]} has not ended within {SYSTEMCTL_S:.0f}s",
            reason=Reason.TIMEOUT,
            hint=f"journalctl -u {UNIT} -e",
        ) from None
    if done.returncode != 0:
        raise CalabashError(
            f"systemctl {words[0]} failed: {done.stderr.strip().splitlines()[0] if done.stderr.strip() else done.returncode}",
            reason=Reason.CONFLICT,
            hint=f"journalctl -u {UNIT} -e",
        )
    return done.stdout
