"""All appliances of one host, kept equal to what the book of networks has assign_hosts there."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Protocol

from calabash.model.errors import CalabashError
from calabash.model.network import NetworkGateway, kind_of
from calabash.model.network_services import LoadBalancer
from calabash.net.appliances.model import Replica
from calabash.net.appliances.naming import is_pair
from calabash.net.appliances.rendering import rendered
from calabash.net.appliances.replicas import assign_hosts, placement_number, replicas_of
from calabash.net.objects.collection import NetworkObjects
from calabash.netd.appliances import processes, watching
from calabash.netd.appliances.keeping import ApplianceKeeper, AppliancePlace
from calabash.netd.appliances.tools import ApplianceTools
from calabash.netd.appliances.watching import ApplianceSight
from calabash.seams.links import interfaces, namespaces
from calabash.seams.links.interfaces import LinkEnd

_DEVICE = "cx"


class ApplianceSwitch(Protocol):
    """The host's switch. Methods raise CalabashError."""

    def plug(self, device: str, port: str) -> bool:
        """Have a device be a logical port; again changes nothing. Whether packets pass there already."""
        ...

    def unplug(self, device: str) -> None: ...

    def plugged(self) -> Sequence[str]:
        """Devices that are ports of the switch."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceHost:
    """A host that appliances are assign_hosts on.

    Args:
        name: its ``system-id``.
        prefix: of the names of namespaces there, unlike any other host's of this machine.
        namespace: that of its switch, None this process's.
        directory: for files of appliances, private to root; short, as sockets are in it.
    """

    name: str
    prefix: str
    namespace: Path | None
    directory: Path


class Appliances:
    """The appliances of one host. ``keep`` is called again and again, by one thread; what runs goes on when nobody calls it.

    Args:
        secrets: certificates with their keys (PEM) by ``VPC/NAME``, None where there is none.
    """

    def __init__(
        self,
        host: ApplianceHost,
        *,
        switch: ApplianceSwitch,
        tools: ApplianceTools,
        secrets: Callable[[str], bytes | None],
    ) -> None:
        self._host = host
        self._secrets = secrets
        self._switch = switch
        self._tools = tools
        self._keepers: dict[str, ApplianceKeeper] = {}

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until no other process keeps this host, and keeps others from it until the end. Its directory is there."""
        with open(self._host.directory / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when closed, also by a kill
            yield

    def keep(
        self, networks: NetworkObjects, hosts: Sequence[str], closed: Sequence[IPv4Network] = ()
    ) -> list[ApplianceSight]:
        """Makes, changes and removes what has to be, and says what is seen. One that fails does not keep others from it.

        Args:
            hosts: all that appliances may be on; closed: ranges of the platform's own networks.
        """
        wanted, sights = here(networks, self._host.name, hosts, closed)
        places = {replica.seat.name: self._place(replica.seat.name) for replica in wanted}
        running = processes.by_namespace()
        self._remove_others({place.namespace for place in places.values()}, running)
        return sights + [self._kept(replica, places[replica.seat.name], running) for replica in wanted]

    def _kept(
        self,
        replica: Replica,
        place: AppliancePlace,
        running: Mapping[int, list[processes.InNamespace]],
    ) -> ApplianceSight:
        keeper = self._keepers.setdefault(
            place.namespace,
            ApplianceKeeper(place, tools=self._tools, plug=self._switch.plug, secret=self._secrets),
        )
        appliance = rendered(replica, str(place.directory))
        failure = ""
        try:
            keeper.keep(appliance, running.get(processes.inode_of(place.path), []))
        except (CalabashError, OSError) as error:
            failure = str(error)
        return watching.seen(appliance, place.path, place.directory, failure)

    def _remove_others(self, wanted: set[str], running: Mapping[int, list[processes.InNamespace]]) -> None:
        """Takes away what is of no wanted appliance: of one that is gone, or left by a keeper that was killed."""
        known = set(namespaces.names(self._host.prefix)) | set(self._keepers)
        for name in known - wanted:
            place = self._place_of(name)
            keeper = self._keepers.pop(name, None) or ApplianceKeeper(
                place, tools=self._tools, plug=self._switch.plug, secret=self._secrets
            )
            keeper.end(running.get(processes.inode_of(place.path), []))
        with contextlib.suppress(CalabashError):  # a switch that is away is looked at again; replicas say what is wrong
            for device in self._switch.plugged():
                end = LinkEnd(namespace=self._host.namespace, name=device)
                if device.startswith(_DEVICE) and not interfaces.present(end):
                    self._switch.unplug(device)

    def _place(self, replica: str) -> AppliancePlace:
        return self._place_of(self._host.prefix + hashlib.sha256(replica.encode()).hexdigest()[:12])

    def _place_of(self, namespace: str) -> AppliancePlace:
        directory = self._host.directory / namespace.removeprefix(self._host.prefix)
        return AppliancePlace(namespace=namespace, host=self._host.namespace, directory=directory)


def here(
    networks: NetworkObjects, host: str, hosts: Sequence[str], closed: Sequence[IPv4Network] = ()
) -> tuple[list[Replica], list[ApplianceSight]]:
    """The replicas that are to be on a host, and what cannot be carried out anywhere with its reason."""
    wanted: list[Replica] = []
    refused: list[ApplianceSight] = []
    items: list[NetworkGateway | LoadBalancer] = [*networks.all(NetworkGateway), *networks.all(LoadBalancer)]
    for item in items:
        if not is_pair(item):
            continue
        try:
            pair = replicas_of(networks, item, closed)
            where = assign_hosts(pair, hosts, placement_number(item.name))
            found = [replica for replica in pair if where.get(replica.seat.name) == host]
            for replica in found:
                rendered(replica, "/")  # says whether it can be
            wanted += found
        except CalabashError as error:
            refused.append(ApplianceSight(item=item.name, kind=kind_of(item).value, replica="", failure=error.message))
    return wanted, refused
