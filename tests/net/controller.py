"""A network controller in the test's own process, and networks for it to realize."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.daemons.world import until

from calabash.api.networks import NetworkReport, NetworkSnapshot, SnapshotObject
from calabash.controllers.networks.desired_rows import owner_rows
from calabash.controllers.networks.reconciler import Reconciler
from calabash.controllers.sources.network_source import Key, NetworkUpdate
from calabash.model.addresses import parse_network
from calabash.model.network import NetworkKind, NetworkObject, Port, Subnet, Vpc, kind_of
from calabash.model.network_status import ConditionKind
from calabash.net.objects.specs import encode
from calabash.net.ovn.northbound.changes import diff
from calabash.net.ovn.northbound.rows import PLATFORM, Change
from calabash.net.store.networks import Networks


def vpc_with_ports(networks: Networks, name: str, ports: int = 2) -> Networks:
    """Return networks with a VPC 10.0.0.0/16, its subnet ``a`` with DHCP and DNS, and ports ``p0``, ``p1``..."""
    items: list[NetworkObject] = [
        Vpc(name=name, cidrs=(parse_network("10.0.0.0/16"),)),
        Subnet(name=f"{name}/a", cidrs=(parse_network("10.0.1.0/24"),), dhcp=True, dns=True),
        *(Port(name=f"{name}/a/p{number}") for number in range(ports)),
    ]
    for item in items:
        networks, _ = networks.put(item)
    return networks


def update_of(networks: Networks, generation: int = 1) -> NetworkUpdate:
    """Return an update with all objects of the networks."""
    return NetworkUpdate(
        revision=networks.revision, whole=True, items=[(item, generation) for item in networks.items()]
    )


def write_networks(path: Path, networks: Networks) -> None:
    """Write the networks as a file that the controller reads."""
    import msgspec

    snapshot = NetworkSnapshot(
        revision=networks.revision,
        whole=True,
        objects=[SnapshotObject(kind=kind_of(i), name=i.name, generation=1, spec=encode(i)) for i in networks.items()],
        removed=[],
    )
    new = path.with_suffix(".new")
    new.write_text(json.dumps(msgspec.to_builtins(snapshot)))
    new.rename(path)


class Controller:
    """A reconciler with its thread. ``reports`` has the last report of each object."""

    def __init__(self, northbound: str, southbound: str, **settings: Any) -> None:
        self.reconciler = Reconciler(northbound, southbound, **settings)
        self.reports: dict[Key, NetworkReport] = {}
        self._thread = threading.Thread(target=self.reconciler.run, args=(self._take,), daemon=True)
        self._thread.start()

    def _take(self, reports: Iterable[NetworkReport]) -> None:
        self.reports.update(((report.kind, report.name), report) for report in reports)

    def take(self, networks: Networks, generation: int = 1) -> None:
        self.reconciler.apply_update(update_of(networks, generation))

    def realize(self, networks: Networks, generation: int = 1) -> None:
        """Pass the networks to the reconciler, and return when they are realized."""
        self.take(networks, generation)
        self.settled(networks)

    def settled(self, networks: Networks) -> None:
        assert self._thread.is_alive()
        until(
            lambda: self.reconciler.revision == networks.revision and self.reconciler.settled(),
            what=f"a settled controller: {self.reports}",
        )

    def condition(self, kind: NetworkKind, name: str, condition: ConditionKind) -> tuple[bool | None, str, str]:
        report = self.reports.get((kind, name))
        for found in report.status.conditions if report is not None else ():
            if found.kind is condition:
                return found.holds, found.reason, found.message
        return None, "", ""

    def differences(self, networks: Networks) -> list[Change]:
        """Return the changes that would make OVN equal to the networks, including rows of deleted VPCs."""
        northbound = self.reconciler.northbound
        owners = {PLATFORM, *northbound.owners(), *(vpc.name for vpc in networks.all(Vpc))}
        return [
            change
            for owner in sorted(owners)
            for change in diff(owner_rows(networks, owner, self.reconciler.surroundings), northbound.actual(owner))
        ]

    def close(self) -> None:
        self.reconciler.close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
