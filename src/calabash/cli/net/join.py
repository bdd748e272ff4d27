"""Connect the pool of this home to a lab network: its network controller uses the lab's OVN, and VPCs get an uplink."""

from __future__ import annotations

from pathlib import Path

import click

from calabash.adapters.links import namespaces
from calabash.api import endpoints
from calabash.cli.home import client
from calabash.controllers.lab.host import MANAGEMENT, UNDERLAY
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.links import WORLD_ADDRESSES
from calabash.controllers.networks.settings import (
    NetworkConnection,
    read_connection,
    remove_connection,
    write_connection,
)
from calabash.model.errors import CalabashError, Reason
from calabash.node.ports.network_file import HOST_FILE, HostPlace, write_host_place

UPLINK = "world"


def check(lab: Lab, home: Path) -> None:
    """Raise CONFLICT if the pool at ``home`` is connected to another network."""
    known = read_connection(home)
    if known is not None and known.northbound != lab.northbound:
        raise CalabashError(
            f"the pool at {home} already uses another network: {known.northbound}",
            reason=Reason.CONFLICT,
            hint="stop that network with `calabash net down`, or select another pool with CALABASH_HOME",
        )


def join(lab: Lab, home: Path, host: str | None) -> None:
    """Connect the pool at ``home`` to the network; the pool's programs run on ``host``, else on the first host."""
    at = lab.host(host or next(iter(lab.hosts)))
    home.mkdir(mode=0o711, parents=True, exist_ok=True)
    namespace = str(namespaces.path_of(at.namespace)) if at.namespace else ""
    write_host_place(home, HostPlace(name=at.name, switch=at.ovs_socket, namespace=namespace))
    connection = NetworkConnection(
        northbound=lab.northbound,
        southbound=lab.southbound,
        gateways=list(lab.record.gateways),
        lab="" if lab.record.dummy else lab.record.prefix,
        protected=[f"{MANAGEMENT}.0/24", f"{UNDERLAY}.0/24"],
    )
    if read_connection(home) != connection:  # a controller that runs for it already goes on
        write_connection(home, connection)
    click.echo(f"the pool at {home} uses this network")
    if lab.record.gateways:
        _give_outside()


def leave(lab: Lab, home: Path) -> None:
    """Disconnect the pool at ``home`` if it uses this network; the pool keeps its network objects."""
    try:
        known = read_connection(home)
    except CalabashError:
        return
    if known is not None and known.northbound == lab.northbound:
        remove_connection(home)
        (home / HOST_FILE).unlink(missing_ok=True)


def _give_outside() -> None:
    """Create the uplink ``UPLINK`` to the outside of the network, unless it exists."""
    address, _, length = WORLD_ADDRESSES[0].partition("/")
    spec = {"cidr": f"{address.rpartition('.')[0]}.0/{length}", "gateway": address}
    try:
        pool = client()
        if not any(
            item["name"] == UPLINK for item in pool.items(endpoints.LIST_NETWORK_OBJECTS, query={"kind": "uplink"})
        ):
            pool.send(endpoints.PUT_NETWORK_OBJECT, body={"kind": "uplink", "name": UPLINK, "spec": spec})
    except CalabashError as error:
        if error.reason is not Reason.POOL_DOWN:
            raise
        click.echo("no pool runs yet; repeat `calabash net up` when it runs, to create the uplink of VPCs")
    else:
        click.echo(f"uplink {UPLINK}: {spec['cidr']}")
