"""Appliances of one host: create, change and remove replicas until they are those that are assigned to the host."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Protocol

from calabash.adapters.links import interfaces, namespaces
from calabash.adapters.links.interfaces import LinkEnd
from calabash.controllers.appliances import processes, replica_state
from calabash.controllers.appliances.programs import ApplianceTools
from calabash.controllers.appliances.replica import ReplicaManager, ReplicaPlace
from calabash.controllers.appliances.replica_state import ReplicaState
from calabash.model.errors import CalabashError
from calabash.model.network import NetworkGateway, kind_of
from calabash.model.network_services import LoadBalancer
from calabash.net.appliances.model import Replica
from calabash.net.appliances.naming import is_pair
from calabash.net.appliances.rendering import build_appliance
from calabash.net.appliances.replicas import assign_hosts, placement_number, replicas_of
from calabash.net.objects.collection import NetworkObjects

_DEVICE = "cx"


class ApplianceSwitch(Protocol):
    """Switch of a host. Methods raise CalabashError."""

    def plug(self, device: str, port: str) -> bool:
        """Connect a network device to the switch as logical port ``port``; return True if packets pass there already.

        Does nothing if the device is connected already.
        """
        ...

    def unplug(self, device: str) -> None: ...

    def plugged(self) -> Sequence[str]:
        """Return the names of the network devices that this product has connected to the switch."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceHost:
    """Host of appliances.

    Args:
        name: ``system-id`` of the host in Open vSwitch.
        prefix: prefix of the names of the replicas' network namespaces, unique on this machine.
        namespace: network namespace of the host's switch; None: that of this process.
        directory: directory for the files of the appliances, private to root. Its path must be short, because it
            contains Unix sockets, whose paths are limited.
    """

    name: str
    prefix: str
    namespace: Path | None
    directory: Path


class Appliances:
    """Appliances of one host. ``reconcile`` is called repeatedly by one thread; programs continue to run in between.

    Args:
        switch: connects interfaces to the host's switch.
        tools: locations of the programs that run in replicas.
        secrets: given a certificate's name ``VPC/NAME``, returns certificate and key as PEM; None if there is none.
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
        self._managers: dict[str, ReplicaManager] = {}

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Wait until no other process manages the host, and keep others waiting while the context lasts.

        The host's directory must exist, because it contains the lock file.
        """
        with open(self._host.directory / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when closed, also by a kill
            yield

    def reconcile(
        self, networks: NetworkObjects, hosts: Sequence[str], closed: Sequence[IPv4Network] = ()
    ) -> list[ReplicaState]:
        """Create, change and remove replicas of this host as needed; return the state of each.

        If a replica cannot be completed, its state contains the error, and the other replicas are still reconciled.

        Args:
            networks: the desired networks of all tenants.
            hosts: names of all hosts of appliances, over which replicas are distributed.
            closed: ranges of the platform's own networks, which tenants must not reach.
        """
        wanted, states = local_replicas(networks, self._host.name, hosts, closed)
        places = {replica.member.name: self._place_of_replica(replica.member.name) for replica in wanted}
        running = processes.by_namespace()
        self._remove_others({place.namespace for place in places.values()}, running)
        return states + [self._reconcile_replica(replica, places[replica.member.name], running) for replica in wanted]

    def _reconcile_replica(
        self,
        replica: Replica,
        place: ReplicaPlace,
        running: Mapping[int, list[processes.InNamespace]],
    ) -> ReplicaState:
        manager = self._managers.setdefault(
            place.namespace,
            ReplicaManager(place, tools=self._tools, plug=self._switch.plug, secret=self._secrets),
        )
        appliance = build_appliance(replica, str(place.directory))
        failure = ""
        try:
            manager.reconcile(appliance, running.get(processes.inode_of(place.path), []))
        except (CalabashError, OSError) as error:
            failure = str(error)
        return replica_state.current_state(appliance, place.path, place.directory, failure)

    def _remove_others(self, wanted: set[str], running: Mapping[int, list[processes.InNamespace]]) -> None:
        """Remove unwanted replicas, including those left by a killed process, and their switch ports.

        Args:
            wanted: names of the replicas to keep.
            running: processes by the inode number of their network namespace.
        """
        known = set(namespaces.names(self._host.prefix)) | set(self._managers)
        for name in known - wanted:
            place = self._place_of(name)
            manager = self._managers.pop(name, None) or ReplicaManager(
                place, tools=self._tools, plug=self._switch.plug, secret=self._secrets
            )
            manager.remove(running.get(processes.inode_of(place.path), []))
        with contextlib.suppress(CalabashError):  # retried in the next round; replicas report the error
            for device in self._switch.plugged():
                end = LinkEnd(namespace=self._host.namespace, name=device)
                if device.startswith(_DEVICE) and not interfaces.present(end):
                    self._switch.unplug(device)

    def _place_of_replica(self, replica: str) -> ReplicaPlace:
        return self._place_of(self._host.prefix + hashlib.sha256(replica.encode()).hexdigest()[:12])

    def _place_of(self, namespace: str) -> ReplicaPlace:
        directory = self._host.directory / namespace.removeprefix(self._host.prefix)
        return ReplicaPlace(namespace=namespace, host=self._host.namespace, directory=directory)


def local_replicas(
    networks: NetworkObjects, host: str, hosts: Sequence[str], closed: Sequence[IPv4Network] = ()
) -> tuple[list[Replica], list[ReplicaState]]:
    """Return the replicas assigned to a host, and a state with the error for each invalid gateway or load balancer."""
    wanted: list[Replica] = []
    failed: list[ReplicaState] = []
    items: list[NetworkGateway | LoadBalancer] = [*networks.all(NetworkGateway), *networks.all(LoadBalancer)]
    for item in items:
        if not is_pair(item):
            continue
        try:
            pair = replicas_of(networks, item, closed)
            where = assign_hosts(pair, hosts, placement_number(item.name))
            found = [replica for replica in pair if where.get(replica.member.name) == host]
            for replica in found:
                build_appliance(replica, "/")  # raises an error if it is invalid
            wanted += found
        except CalabashError as error:
            failed.append(ReplicaState(item=item.name, kind=kind_of(item).value, replica="", failure=error.message))
    return wanted, failed
