"""A whole lab: create and start it, find it from another process, and remove it.

A lab is identified by its prefix: ``PREFIX-h1`` is the namespace of host ``h1``, and ``PREFIX.lab`` in the register of
labs is a symbolic link to the lab's directory. The description of the lab is written to this directory before anything
else is created, so that the leftovers of a killed ``up`` can be found and removed. Only one process at a time may
create or remove the lab of a prefix.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from calabash.controllers.lab import daemons, links, namespaces, programs, station
from calabash.controllers.lab.central import DAEMONS, LabCentral
from calabash.controllers.lab.certificates import LabAuthority
from calabash.controllers.lab.host import HOST_DAEMONS, LabHost
from calabash.controllers.lab.record import LabRecord, exclusive, mark_going_down, register
from calabash.controllers.lab.station import Station
from calabash.controllers.lab.vlans import VlanSwitch
from calabash.model.errors import CalabashError, Reason

_CHASSIS_S = 60  # seconds to wait for each chassis


class Lab:
    """Central part, hosts, gateway hosts and world in namespaces ``PREFIX-…`` of this machine.

    Args:
        prefix: prefix of the lab's namespaces: a letter and up to seven letters or digits.
        directory: directory of this lab only; created by ``up`` and removed by ``down``.
        hosts: names of the hosts that are not gateway hosts, in the same form as the prefix.
        gateways: names of the gateway hosts.
        dummy: run only the control plane, which needs no namespaces and no root rights, and forwards no packets.
    """

    def __init__(
        self,
        *,
        prefix: str,
        directory: Path,
        hosts: Sequence[str] = ("h1", "h2", "h3"),
        gateways: Sequence[str] = ("g1", "g2"),
        dummy: bool = False,
    ) -> None:
        self.record = LabRecord(prefix=prefix, hosts=tuple(hosts), gateways=tuple(gateways), dummy=dummy)
        self.directory = directory
        self._programs: programs.OvnPrograms | None = None

    @classmethod
    def of_prefix(cls, prefix: str) -> Lab | None:
        """Return the lab with that prefix, or None if there is none.

        Root sees the labs of the machine, another user only the user's own labs without namespaces.
        """
        place = register() / f"{prefix}.lab"
        try:
            directory = Path(os.readlink(place))
        except OSError:
            return None
        record = LabRecord.read(directory) or LabRecord(prefix=prefix, hosts=(), gateways=())
        lab = cls(prefix=prefix, directory=directory)
        lab.record = record
        return lab

    def up(self) -> None:
        """Create the lab, or start those of its daemons that are not running. An incomplete lab is created again.

        Raises:
            CalabashError: CONFLICT if prefix or directory belong to another lab, NOT_PERMITTED without root,
                UNSUPPORTED if the machine lacks a requirement.
        """
        self.record.check()
        if not self.record.dummy:
            _need_root()
        with exclusive(self.record.prefix):
            known = Lab.of_prefix(self.record.prefix)
            _refuse_other(self, known)
            if known is not None and known.record.phase != "up":
                known.remove()  # left incomplete by a killed process
                known = None
            self._programs = programs.get()
            if known is not None:
                self._start()
                return
            try:
                self._begin()
                self._start()
            except BaseException:
                self.remove()  # an incomplete lab is of no use
                raise

    def down(self) -> bool:
        """End all processes of the lab and remove everything it created; return True if there was a lab.

        The lab is marked first. Processes that manage appliances in it then start nothing more, and this method waits
        until their current step has ended.
        """
        mark_going_down(self.record.prefix)
        with exclusive(self.record.prefix):
            known = Lab.of_prefix(self.record.prefix)
            if known is None:
                return False
            known.remove()
            return True

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def programs(self) -> programs.OvnPrograms:
        """Locations of OVN's programs. ``programs.command("ovn-trace")`` begins the command line of that program."""
        if self._programs is None:
            self._programs = programs.get()
        return self._programs

    @property
    def northbound(self) -> str:
        return f"unix:{self.directory / 'central' / 'nb.sock'}"

    @property
    def southbound(self) -> str:
        return f"unix:{self.directory / 'central' / 'sb.sock'}"

    @property
    def central(self) -> LabCentral:
        return LabCentral(
            directory=self.directory / "central", namespace=self._namespace(links.CENTRAL), programs=self.programs
        )

    @property
    def hosts(self) -> dict[str, LabHost]:
        """Hosts and gateway hosts by name."""
        numbers = self.record.numbers()
        return {name: self._host(name, numbers) for name in numbers}

    def host(self, name: str) -> LabHost:
        """Return a host or gateway host. Raises CalabashError (NOT_FOUND)."""
        found = self.hosts.get(name)
        if found is None:
            raise CalabashError(f"the lab has no host {name}: it has {', '.join(self.hosts)}", reason=Reason.NOT_FOUND)
        return found

    @property
    def world(self) -> Station:
        """The provider's router and everything behind it. Callers add routes back to the VPCs."""
        return Station(
            name=links.WORLD,
            namespace=self._namespace(links.WORLD),
            card="x0",
            mac="",
            addresses=links.WORLD_ADDRESSES,
        )

    def run(self, namespace: str, *argv: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a program in a namespace of the lab, named with or without the prefix, such as ``h1`` for that of a host.

        ``fab`` is the namespace of the links, ``ctl`` that of the central part, and ``world`` that of the provider.
        """
        own = self.record.prefix + "-"
        return namespaces.run(namespace if namespace.startswith(own) else own + namespace, *argv, timeout_s=timeout_s)

    def station(
        self, host: str, port: str, mac: str, addresses: Sequence[str], gateways: Sequence[str] = ()
    ) -> Station:
        """Create a station, a namespace whose interface is a logical port.

        Args:
            host: name of the host to which the station is attached.
            port: name of the logical port.
            mac: MAC of the port.
            addresses: addresses with prefix lengths, such as ``10.0.1.11/24``.
            gateways: next hops of default routes.
        """
        namespace = f"{self.record.prefix}-{port.replace('/', '.')}"
        return station.attach(
            self.host(host), namespace=namespace, port=port, mac=mac, addresses=addresses, gateways=gateways
        )

    def customer(self, name: str, addresses: Sequence[str], *, vlan: int = 0, gateways: Sequence[str] = ()) -> Station:
        """Create a router on the provider network, which stands for a site of a tenant or for another uplink.

        Args:
            name: name of the router, and of its namespace without the prefix.
            addresses: addresses with prefix lengths.
            vlan: VLAN of the router's link; 0 for untagged.
            gateways: next hops of default routes.
        """
        cables = self._namespace(links.FABRIC)
        made, device = station.attach_to_namespace(
            self._namespace(name), name=name, cables=cables, addresses=addresses, gateways=gateways
        )
        if vlan:
            switch = VlanSwitch(
                namespace=cables, directory=self.directory / "vlans", outer=links.OUTSIDE, programs=self.programs
            )
            switch.up()
            switch.join(device, vlan)
        else:
            namespaces.ip([("link", "set", device, "master", links.OUTSIDE)], name=cables)
        return made

    def daemons(self) -> dict[str, int]:
        """Return the process IDs of all daemons by name (``h1/ovn-controller``); 0 for one that is not running."""
        named = [("central", name) for name in DAEMONS]
        named += [(host, name) for host in self.record.numbers() for name in HOST_DAEMONS]
        return {f"{on}/{name}": daemons.daemon_pid(self.directory / on / f"{name}.pid") for on, name in named}

    def _host(self, name: str, numbers: Mapping[str, int]) -> LabHost:
        return LabHost(
            name=name,
            number=numbers[name],
            namespace=self._namespace(name),
            directory=self.directory / name,
            gateway=name in self.record.gateways,
            southbound=self.southbound,
            peers=tuple(number for other, number in numbers.items() if other != name),
            programs=self.programs,
        )

    def _namespace(self, name: str) -> str:
        return "" if self.record.dummy else f"{self.record.prefix}-{name}"

    def _start(self) -> None:
        _start_lab(self.central, list(self.hosts.values()), keys=self.directory / "authority")
        self.record = self.record.with_phase("up")
        self.record.write(self.directory)

    def _begin(self) -> None:
        """Write the description to disk, then create namespaces and links."""
        self.record = self.record.with_phase("coming up")
        (register() / f"{self.record.prefix}.lab").symlink_to(self.directory)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.record.write(self.directory)
        if not self.record.dummy:
            links.make_links(self.record.prefix, list(self.hosts.values()))

    def remove(self) -> None:
        """End the daemons; remove the namespaces and all files. The caller holds the lock of the prefix."""
        daemons.kill_all(self.directory)
        if not self.record.dummy:
            while own := namespaces.named(
                f"{self.record.prefix}-"
            ):  # an `ip` command of a killed `up` may still be running
                daemons.end([pid for name in own for pid in namespaces.processes(name)])
                namespaces.ip([("netns", "del", name) for name in own])
        shutil.rmtree(self.directory, ignore_errors=True)
        (register() / f"{self.record.prefix}.lab").unlink(missing_ok=True)


def _start_lab(central: LabCentral, hosts: Sequence[LabHost], *, keys: Path) -> None:
    """Start the daemons of a lab; return when every host has registered in the southbound database.

    ``keys`` is the directory of the certificate authority. Raises CalabashError.
    """
    if central.namespace:
        authority = LabAuthority(keys)
        authority.issue(central.keys, "central")
        for host in hosts:
            authority.issue(host.keys, host.name)
    with ThreadPoolExecutor(max_workers=len(hosts) + 1) as pool:
        ready = pool.submit(central.up)
        started = [pool.submit(_start_host, host, ready) for host in hosts]
    for outcome in (ready, *started):
        outcome.result()
    for host in hosts:
        central.sbctl("wait-until", "Chassis", host.name, timeout_s=_CHASSIS_S)


def _start_host(host: LabHost, central: Future[None]) -> None:
    host.up_switch()
    central.result()  # ovn-controller retries a failed connection only after a second
    host.start("ovn-controller")


def _refuse_other(lab: Lab, known: Lab | None) -> None:
    """Raise CalabashError (CONFLICT) if the prefix, namespaces or directory are in use for another purpose."""
    prefix = lab.record.prefix
    if known is not None and known.directory != lab.directory:
        raise CalabashError(
            f"prefix {prefix} is used by the lab in {known.directory}",
            reason=Reason.CONFLICT,
            hint=f"use another --prefix, or `calabash net down --prefix {prefix}`",
        )
    if known is not None and known.record.phase == "up" and known.record != lab.record.with_phase("up"):
        raise CalabashError(
            f"network {prefix} is up with {len(known.record.hosts)} hosts and {len(known.record.gateways)} gateway hosts"
            f"{', without packets' if known.record.dummy else ''}",
            reason=Reason.CONFLICT,
            hint=f"`calabash net down --prefix {prefix}` first, or use another --prefix",
        )
    if known is None and not lab.record.dummy and (foreign := namespaces.named(f"{prefix}-")):
        raise CalabashError(
            f"network namespace {foreign[0]} exists and belongs to no lab",
            reason=Reason.CONFLICT,
            hint="use another --prefix, or remove it: ip netns del " + foreign[0],
        )
    if known is None and lab.directory.exists() and any(lab.directory.iterdir()):
        raise CalabashError(
            f"{lab.directory} is not empty and belongs to no lab", reason=Reason.CONFLICT, hint="use another directory"
        )


def _need_root() -> None:
    if os.geteuid() != 0:
        raise CalabashError(
            "network namespaces need root",
            reason=Reason.NOT_PERMITTED,
            hint="sudo calabash net up, or `calabash net up --dummy` for the control plane without packets",
        )
    if not Path("/dev/net/tun").exists():
        raise CalabashError(
            "/dev/net/tun is missing, which the userspace datapath of Open vSwitch needs",
            reason=Reason.UNSUPPORTED,
            hint="modprobe tun, or `calabash net up --dummy` for the control plane without packets",
        )
    missing = programs.missing_commands()
    if missing:
        raise CalabashError(
            f"command ip of package {missing[0]} is missing",
            reason=Reason.UNSUPPORTED,
            hint=f"apt-get install {missing[0]}",
        )
