"""Stopping backend of a layer 4 balancer: for how long clients are refused.

Two programs with ports on one host of a lab, and a client on another one that connects every few milliseconds. One program
stops listening while it goes on running, as a server that is being replaced does.

The goal is in seconds, because the interval at which the controller polls listening sockets (50 ms) and the round of OVN
set the time.
"""

from __future__ import annotations

import os
import statistics
import time

from tests.daemons.world import until
from tests.net.backends import BACKENDS, Balanced, Calling, send_command

from bench._report import Report, run
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.record import register

ROUNDS, QUICK_ROUNDS = 10, 3
REFUSED_S = 0.5
PREFIX = "bnb"
AFTER_S = 5.0  # after a program has stopped: OVN's own checks need less


def measure(report: Report) -> None:
    lab = Lab(prefix=PREFIX, directory=register() / PREFIX, hosts=("h1", "h2"), gateways=())
    with lab:
        balanced = Balanced(lab, check_s=1.0)
        try:
            found = [_closed(balanced, BACKENDS[n % 2]) for n in range(QUICK_ROUNDS if report.quick else ROUNDS)]
        finally:
            balanced.close()
    times, refused, calls = ([one[n] for one in found] for n in range(3))
    how = f"{len(found)} programs that stop listening; longest {max(times):.3f} s; set by timers"
    report.add("backend_refuses", statistics.median(times), "s", at_most=REFUSED_S, detail=how)
    share = 100 * sum(refused) / sum(calls)
    report.add("refused_connections", share, "%", detail=f"{sum(refused):.0f} of those in {AFTER_S:g} s after each")


def _closed(balanced: Balanced, port: str) -> tuple[float, float, float]:
    """Return the time to the last unanswered connection in seconds, the number of unanswered connections, and of all."""
    until(balanced.both_answer, within_s=60, what="both backends answer")
    with Calling(balanced.client) as calling:
        until(lambda: len(calling.outcomes) > 50, within_s=60)
        closed_s = time.monotonic()
        send_command(balanced.servers[port], "close", "closed")
        time.sleep(AFTER_S)
        after = calling.since(closed_s)
    send_command(balanced.servers[port], "open", "open")
    failed = [begun_s for begun_s, outcome in after if outcome not in BACKENDS]
    return max(failed, default=0.0), len(failed), len(after)


if __name__ == "__main__":
    os.umask(0o022)
    run("net_balancers", "A backend that stops listening", measure)
