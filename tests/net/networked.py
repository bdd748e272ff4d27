"""A pool whose VPCs are realized in a lab, with programs on one of its hosts."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.daemons.behind import ForkedCaller, running
from tests.daemons.users import User, open_way
from tests.daemons.world import World, until

from calabash.adapters.links import namespaces
from calabash.controllers.lab.lab import Lab
from calabash.controllers.networks.settings import NetworkConnection, write_connection
from calabash.node.membership.protocol import group_name
from calabash.node.ports.network_file import HostPlace, write_host_place

SLICE = {"memory_mib": 1024, "cores": 10}


class Networked:
    """A pool whose VPCs are realized in the lab; its programs run on host h1."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.world = World(Path(tempfile.mkdtemp(prefix="cbp-")) / "home")
        self.callers: list[ForkedCaller] = []
        host = lab.host("h1")
        namespace = str(namespaces.path_of(host.namespace))
        write_host_place(self.world.home, HostPlace(name="h1", switch=host.ovs_socket, namespace=namespace))
        connection = NetworkConnection(northbound=lab.northbound, southbound=lab.southbound)
        write_connection(self.world.home, connection)
        self.world.up()
        open_way(self.world.home)
        self.put("vpc", "red", cidrs=["10.0.0.0/16"])
        self.put("subnet", "red/a", cidrs=["10.0.1.0/24"], dns=True)
        for number in (1, 2):
            self.put("port", f"red/a/web{number}", addresses=[f"10.0.1.1{number}"])

    def put(self, kind: str, name: str, **spec: Any) -> None:
        self.world.client.put("/v1/networks/objects", {"kind": kind, "name": name, "spec": spec})

    def run(self, *command: str, user: User | None = None, **body: Any) -> ForkedCaller:
        """Run a program with port web1, or with ``ports``."""
        wanted = {"ports": ["red/a/web1"], **SLICE, **body}
        self.callers.append(running(self.world.home, command, user, **wanted))
        return self.callers[-1]

    def left(self) -> list[str]:
        """Return everything that belongs to ports, on the machine and in the switch of h1."""
        host = self.lab.host("h1")
        ports = host.vsctl("list-ports", "br-int").split()
        links = namespaces.inside(namespaces.path_of(host.namespace), lambda: [n for _, n in socket.if_nameindex()])
        made = [name for name in (*ports, *links) if name.startswith("cb")]
        files = [p.name for p in (self.world.home / "net").glob("*")]
        return [*made, *namespaces.names(f"{group_name(self.world.home)}."), *files]

    def clean(self) -> None:
        for caller in self.callers:
            with suppress(ProcessLookupError):
                os.kill(caller.pid, signal.SIGKILL)
            caller.end()
        self.callers.clear()
        until(self.world.clean, what="the pool to be empty")
        until(lambda: not self.left(), what="the ports to be gone")

    def close(self) -> None:
        self.world.close()
        shutil.rmtree(self.world.home.parent)
