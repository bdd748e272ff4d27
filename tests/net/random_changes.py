"""Random changes of a book of networks while the controller that carries them out is killed again and again.

What it must leave behind: never a VPC half done (a VPC's rows are always those of one revision, not older than the one that its
router tells), and in the end what the book says and nothing else.
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
from tests.net.controller import write_book
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
AT_ONCE_MAX = 8  # changes between two books that the controller may see
WITHIN_S = 120.0


@dataclass(slots=True)
class Endured:
    """What happened: how many changes the book took and refused, and how often the controller died with work
    left, and of how many owners rows were not in the end what the book says."""

    taken: int = 0
    refused: int = 0
    crashes: int = 0
    interrupted: int = 0
    left: int = 0


class Endurance:
    """Databases of OVN alone, a book in a file, and a controller of its own process. ``run`` does it all.

    Args:
        directory: of this run alone, of a short path.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.networks = Networks()
        self.endured = Endured()
        self._random = Random(seed)
        self._source = RandomNetworks(seed, vpcs=VPCS, removing=0.2)
        self._books = {0: self.networks}
        self._file = directory / "book.json"
        self._northbound = DatabaseServer(directory / "nb")
        self._southbound = DatabaseServer(directory / "sb", "OVN_Southbound")

    def run(self, *, changes: int, crashes: int) -> Endured:
        """Fails where something is half done after a crash, or in the end OVN is not what the book says."""
        self._northbound.start()
        self._southbound.start()
        reader = Northbound(self._northbound.remote, lock="")
        try:
            connection = NetworkConnection(
                northbound=self._northbound.remote, southbound=self._southbound.remote, gateways=list(GATEWAYS)
            )
            self.around = Surroundings(hosts=NetworkHosts(gateways=GATEWAYS), protected=connection.ranges())
            write_connection(self.directory, connection)
            write_book(self._file, self.networks)
            reader.session.wait_ready(WITHIN_S)
            for crash in range(crashes):
                self._crash(reader, changes // crashes + (crash < changes % crashes))
            with self._controller() as alive:
                until(lambda: alive() and not self.left(reader), within_s=WITHIN_S, what="OVN is as the book says")
            self.endured.left = len(self.left(reader))
            return self.endured
        finally:
            reader.close()
            self._northbound.kill()
            self._southbound.kill()

    def left(self, reader: Northbound) -> list[str]:
        """The owners whose rows are not what the book says now."""
        owners = {PLATFORM, *(vpc for vpc in self.networks.vpcs if vpc != SHARED), *reader.owners()}
        return [
            owner
            for owner in sorted(owners)
            if diff(owner_rows(self.networks, owner, self.around), reader.actual(owner))
        ]

    def _crash(self, reader: Northbound, changes: int) -> None:
        """A controller lives while some changes are made, and dies after a few transactions, wherever it is then."""
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
        """VPCs whose rows are of no single revision of the book, from the one on that their router tells."""
        return [owner for owner in sorted(reader.owners() - {PLATFORM}) if not self._whole(reader, owner)]

    def _whole(self, reader: Northbound, owner: str) -> bool:
        first, rows = reader.revision(owner), reader.actual(owner)
        books = (book for revision, book in reversed(self._books.items()) if revision >= first)
        return any(not _but_names(diff(owner_rows(book, owner, self.around), rows)) for book in books)

    def _change(self, count: int) -> None:
        for _ in range(count):
            change = self._source.change(self.networks)
            try:
                self.networks = change.applied(self.networks)
            except CalabashError:
                self.endured.refused += 1
                continue
            self.endured.taken += 1
        self._books[self.networks.revision] = self.networks
        write_book(self._file, self.networks)

    @contextmanager
    def _controller(self) -> Iterator[Callable[[], bool]]:
        """A controller, which is killed in the end; whether it lives, which it must."""
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
    """Without those of names, which follow in a transaction of their own."""
    return [
        change
        for change in changes
        if change.row.table != "DNS" and not (isinstance(change, Update) and set(change.columns) == {"dns_records"})
    ]
