"""``calabash net doctor``: check the pool, the network controller, OVN and the hosts."""

from __future__ import annotations

import logging
import sys

import click
import structlog

from calabash.cli import output
from calabash.cli.home import client, own_file
from calabash.cli.output import Column
from calabash.controllers.networks.doctor import examine
from calabash.controllers.networks.settings import NETWORK_FILE

COLUMNS = (
    Column(title="CHECK", text=lambda r: r["check"]),
    Column(title="RESULT", text=lambda r: r["result"]),
    Column(title="DETAIL", text=lambda r: r["text"]),
)


@click.command()
@click.option(
    "--switch",
    metavar="REMOTE",
    default="",
    help="Also check the Open vSwitch at this address, such as unix:/var/run/openvswitch/db.sock.",
)
@output.option
def doctor(switch: str, fmt: str) -> None:
    """Check the requirements of networks and show the results; exit code 1 if a check fails."""
    # Findings are printed as rows; the log of connections is not shown.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    findings = list(examine(own_file(NETWORK_FILE).parent, client(), switch))
    rows = [{"check": f.check, "result": f.result, "text": f.text, "hint": f.hint} for f in findings]
    output.emit("NetworkFindingList", rows, COLUMNS, fmt, name="check")
    for finding in findings:
        if finding.hint and fmt in ("table", "wide"):
            click.echo(f"hint: {finding.check}: {finding.hint}", err=True)
    if any(finding.result == "fail" for finding in findings):
        sys.exit(1)
