"""``calabash bench``: measurements that users make on their own machines."""

from __future__ import annotations

import click

from calabash.adapters.host.children import module_command
from calabash.model.errors import CalabashError
from calabash.model.units import parse_duration_s


@click.group()
def bench() -> None:
    """Measure on this machine what others have published of theirs."""


@bench.command("remote")
@click.option(
    "--rtt", default="0", metavar="TIME", help="Put so long a way between program and server: 1ms. Default: none."
)
@click.option("--server", "servers", multiple=True, metavar="NAME", help="Of this server.")
@click.option("--wait", default="0", metavar="TIME", help="Wait so long for room. Default: do not wait.")
@click.option("--quick", is_flag=True, help="Small copies only.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench_remote(rtt: str, servers: tuple[str, ...], wait: str, quick: bool, as_json: bool) -> None:
    """Measure the line to a server: start, launches, synchronous calls, copies by size."""
    from calabash.cli.run.remote_run import start_remote  # noqa: PLC0415

    rtt_s = parse_duration_s(rtt)
    if rtt_s > 10:
        raise CalabashError(f"--rtt {rtt} is out of range", hint="at most 10s")
    command = module_command("calabash.broker.benchmark", "--rtt-s", str(rtt_s))
    command += ["--largest-mib", "16"] if quick else []
    command += ["--json"] if as_json else []
    given = {"--memory": ["1GiB"], "--wait": [wait]}
    start_remote(given, command, filters=(), servers=servers, lease="", span=False)
