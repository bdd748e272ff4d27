"""``calabash net check``: test the rules of a VPC with packets."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import structlog

from calabash.cli import output
from calabash.cli.home import client, home
from calabash.cli.output import Column
from calabash.controllers.checks.probe_ports import ProbePlaces, hosts_of, pool_networks
from calabash.controllers.checks.result import ConnectivityResult
from calabash.controllers.checks.vpc import check_connectivity
from calabash.controllers.lab import programs
from calabash.controllers.networks.settings import read_connection
from calabash.model.errors import CalabashError, Reason

COLUMNS = (
    Column(title="RESULT", text=lambda r: r["result"]),
    Column(title="CHECK", text=lambda r: r["promise"]),
    Column(title="DETAIL", text=lambda r: r["detail"]),
)


@click.command()
@click.argument("vpc")
@output.option
def check(vpc: str, fmt: str) -> None:
    """Test the connectivity rules of VPC with probe packets on this machine's hosts, and with ovn-trace.

    The probes are temporary ports x-check-1 and x-check-2 of each subnet, in namespaces of their own. Exit code 1 if a rule
    does not hold. Requires root.
    """
    if os.geteuid() != 0:
        raise CalabashError(
            "only root may create the network namespaces of the probes",
            reason=Reason.NOT_PERMITTED,
            hint="run the command as root; `calabash net doctor` needs no probes",
        )
    pool = client()
    networks = pool_networks(pool)
    with _quiet(), ProbePlaces(pool, hosts_of(home())).open() as places:
        tried = list(check_connectivity(networks, vpc, places, _trace()))
    rows = [{"result": _word(t), "promise": t.promise, "detail": t.detail} for t in tried]
    output.emit("NetworkPromiseList", rows, COLUMNS, fmt, name="promise")
    if any(t.held is False for t in tried):
        sys.exit(1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the logs that daemons would write."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def _word(tried: ConnectivityResult) -> str:
    return {True: "ok", False: "FAILS", None: "not tried"}[tried.held]


def _trace() -> tuple[str, ...]:
    """Return the command of ``ovn-trace`` on the pool's southbound database; () if it is not installed."""
    connection, found = read_connection(home()), programs.find()
    if connection is None or found is None or not connection.southbound.startswith("unix:"):
        return ()
    return (*found.command("ovn-trace"), f"--db={connection.southbound}")
