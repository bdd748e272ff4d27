"""``calabash remote bench``: measure the connection to a server of remote devices."""

from __future__ import annotations

import click

from calabash.adapters.host.children import module_command
from calabash.cli import output
from calabash.model.errors import CalabashError
from calabash.model.units import parse_duration_s


@click.command()
@click.option(
    "--rtt",
    default="0",
    metavar="TIME",
    help="Add this round-trip time between program and server, such as 1ms. Default: none.",
)
@click.option("--server", "servers", multiple=True, metavar="NAME", help="Use this server; repeat for several.")
@click.option(
    "--wait", default="0", metavar="TIME", help="Wait at most this long for free devices. Default: do not wait."
)
@click.option("--quick", is_flag=True, help="Measure small copies only.")
@output.option_of("table", "json")
def bench(rtt: str, servers: tuple[str, ...], wait: str, quick: bool, fmt: str) -> None:
    """Measure the connection to a server: start, launches, synchronous calls, copies by size."""
    from calabash.cli.run.remote_run import start_remote  # noqa: PLC0415

    rtt_s = parse_duration_s(rtt)
    if rtt_s > 10:
        raise CalabashError(f"--rtt {rtt} is out of range", hint="at most 10s")
    command = module_command("calabash.broker.benchmark", "--rtt-s", str(rtt_s))
    command += ["--largest-mib", "16"] if quick else []
    command += ["--json"] if fmt == "json" else []
    given = {"--memory": ["1GiB"], "--wait": [wait]}
    start_remote(given, command, filters=(), servers=servers, lease="", span=False)
