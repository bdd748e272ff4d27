"""Random changes of networks while the controller that realizes them is killed again and again.

The invariants: a VPC is never half done (its rows always belong to one revision, not older than the one that its router has),
and in the end OVN has what the networks define and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.daemons.world import until
from tests.net.controller import write_networks
from tests.net.servers import DatabaseServer
from tests.unit.net.random_networks import RandomNetworks

from calabash.adapters.ovn.northbound import Northbound
from calabash.controllers.networks.desired_rows import Surroundings, owner_rows
from calabash.controllers.networks.settings import NetworkConnection, write_connection
from calabash.model.errors import CalabashError
from calabash.net.objects.collection import SHARED
from calabash.net.ovn.northbound.changes import diff
from calabash.net.ovn.northbound.rows import PLATFORM, Change, Update
from calabash.net.ovn.translation.view import NetworkHosts
from calabash.net.store.networks import Networks

GATEWAYS = ("g1", "g2")
VPCS = 40  # more than go into one transaction
AT_ONCE_MAX = 8  # changes between two revisions that the controller may see
WITHIN_S = 120.0


@dataclass(slots=True)
class RunCounts:
    """Counts of a run: accepted and refused changes, crashes, and crashes that left work to do.

    ``left`` is the number of owners whose rows differ from the networks at the end.
    """

    taken: int = 0
    refused: int = 0
    crashes: int = 0
    interrupted: int = 0
    left: int = 0


class Endurance:
    """OVN databases without daemons, networks in a file, and a controller in a process of its own.

    Args:
        directory: for this run alone, with a short path.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.networks = Networks()
        self.endured = RunCounts()
        self._random = Random(seed)
        self._source = RandomNetworks(seed, vpcs=VPCS, removing=0.2)
        self._revisions = {0: self.networks}
        self._file = directory / "book.json"
        self._northbound = DatabaseServer(directory / "nb")
        self._southbound = DatabaseServer(directory / "sb", "OVN_Southbound")

    def run(self, *, changes: int, crashes: int) -> RunCounts:
        """Run the changes and crashes; fail if one leaves a VPC half done, or OVN differs from the networks at the end."""
        self._northbound.start()
        self._southbound.start()
        reader = Northbound(self._northbound.remote, lock="")
        try:
            connection = NetworkConnection(
                northbound=self._northbound.remote, southbound=self._southbound.remote, gateways=list(GATEWAYS)
            )
            self.around = Surroundings(hosts=NetworkHosts(gateways=GATEWAYS), protected=connection.ranges())
            write_connection(self.directory, connection)
            write_networks(self._file, self.networks)
            reader.session.wait_ready(WITHIN_S)
            for crash in range(crashes):
                self._crash(reader, changes // crashes + (crash < changes % crashes))
            with self._controller() as alive:
                until(lambda: alive() and not self.left(reader), within_s=WITHIN_S, what="OVN is as the networks say")
            self.endured.left = len(self.left(reader))
            return self.endured
        finally:
            reader.close()
            self._northbound.kill()
            self._southbound.kill()

    def left(self, reader: Northbound) -> list[str]:
        """Return the owners whose rows differ from the present networks."""
        owners = {PLATFORM, *(vpc for vpc in self.networks.vpcs if vpc != SHARED), *reader.owners()}
        return [
            owner
            for owner in sorted(owners)
            if diff(owner_rows(self.networks, owner, self.around), reader.actual(owner))
        ]

    def _crash(self, reader: Northbound, changes: int) -> None:
        """Run a controller while some changes are made, and kill it after a few transactions."""
        with self._controller() as alive:
            while changes > 0:
                batch = min(changes, self._random.randint(1, AT_ONCE_MAX))
                changes -= batch
                self._change(batch)
            target = reader.counts()[0] + self._random.randrange(4)
            until(
                lambda: alive() and (reader.counts()[0] >= target or not self.left(reader)),
                within_s=WITHIN_S,
                what="the controller writes",
            )
        self.endured.crashes += 1
        self.endured.interrupted += bool(self.left(reader))
        until(lambda: not self._half_done(reader), within_s=WITHIN_S, what=f"whole: {self._half_done(reader)}")

    def _half_done(self, reader: Northbound) -> list[str]:
        """Return the VPCs whose rows belong to no single revision since the one that their router has."""
        return [owner for owner in sorted(reader.owners() - {PLATFORM}) if not self._whole(reader, owner)]

    def _whole(self, reader: Northbound, owner: str) -> bool:
        first, rows = reader.revision(owner), reader.actual(owner)
        revisions = (networks for revision, networks in reversed(self._revisions.items()) if revision >= first)
        return any(not _but_names(diff(owner_rows(networks, owner, self.around), rows)) for networks in revisions)

    def _change(self, count: int) -> None:
        for _ in range(count):
            change = self._source.change(self.networks)
            try:
                self.networks = change.applied(self.networks)
            except CalabashError:
                self.endured.refused += 1
                continue
            self.endured.taken += 1
        self._revisions[self.networks.revision] = self.networks
        write_networks(self._file, self.networks)

    @contextmanager
    def _controller(self) -> Iterator[Callable[[], bool]]:
        """Run a controller, which is killed at the end; the yielded function asserts that it still runs."""
        words = [
            sys.executable,
            "-m",
            "calabash.controllers.networks",
            "--home",
            str(self.directory),
            "--book",
            str(self._file),
        ]
        with open(self.directory / "netd.log", "ab") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def alive() -> bool:
            assert process.poll() is None, (self.directory / "netd.log").read_text()[-2000:]
            return True

        try:
            yield alive
        finally:
            process.kill()
            process.wait()


def _but_names(changes: tuple[Change, ...]) -> list[Change]:
    """Return the changes without those of names, which follow in a transaction of their own."""
    return [
        change
        for change in changes
        if change.row.table != "DNS" and not (isinstance(change, Update) and set(change.columns) == {"dns_records"})
    ]
