"""A whole lab: brought up, found again by another process, taken down. See the package for what it is made of.

A lab is known by its prefix: ``PREFIX-h1`` is the namespace of host ``h1``, and ``PREFIX.lab`` in the register of labs leads to
its directory. What it is made of is written there before anything is made, so that whatever a killed ``up`` left is found and
taken away; only one process at a time brings a lab up or down.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from calabash.model.errors import CalabashError, Reason
from calabash.netd.lab import daemons, namespaces, programs, starting, station, wiring
from calabash.netd.lab.central import DAEMONS, LabCentral
from calabash.netd.lab.host import HOST_DAEMONS, LabHost
from calabash.netd.lab.record import LabRecord, alone, begin_to_end, register
from calabash.netd.lab.station import Station
from calabash.netd.lab.vlans import VlanSwitch


class Lab:
    """Central, hosts and gateway hosts, and the world, in namespaces ``PREFIX-…`` of this machine.

    Args:
        prefix: a letter and up to seven letters or digits.
        directory: of this lab alone; made by ``up`` and removed by ``down``.
        hosts, gateways: their names, a letter and up to seven letters or digits.
        dummy: without namespaces and without root: the whole control plane, and a datapath that moves no packets.
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
        """The lab of this machine (or, of an ordinary user, of this user) with that prefix, None when there is none."""
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
        """Brings the lab up, or what of it does not run; a lab that came up half is made anew. Raises CalabashError.

        CONFLICT: the prefix or the directory is another lab's; NOT_PERMITTED: no root; UNSUPPORTED: the machine cannot.
        """
        self.record.check()
        if not self.record.dummy:
            _need_root()
        with alone(self.record.prefix):
            known = Lab.of_prefix(self.record.prefix)
            _refuse_other(self, known)
            if known is not None and known.record.phase != "up":
                known.remove()  # a killed process left it half
                known = None
            self._programs = programs.get()
            if known is not None:
                self._start()
                return
            try:
                self._begin()
                self._start()
            except BaseException:
                self.remove()  # what came up half is of no use to anybody
                raise

    def down(self) -> bool:
        """Ends every process of the lab and takes away all that it made; whether there was anything. Who keeps appliances there
        begins nothing more, and is waited for."""
        begin_to_end(self.record.prefix)
        with alone(self.record.prefix):
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
        """Which OVN it runs; ``programs.command("ovn-trace")`` begins a command line."""
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
            directory=self.directory / "central", namespace=self._namespace(wiring.CENTRAL), programs=self.programs
        )

    @property
    def hosts(self) -> dict[str, LabHost]:
        """Hosts and gateway hosts, by name."""
        numbers = self.record.numbers()
        return {name: self._host(name, numbers) for name in numbers}

    def host(self, name: str) -> LabHost:
        """A host or gateway host. Raises CalabashError(NOT_FOUND)."""
        found = self.hosts.get(name)
        if found is None:
            raise CalabashError(f"the lab has no host {name}: it has {', '.join(self.hosts)}", reason=Reason.NOT_FOUND)
        return found

    @property
    def world(self) -> Station:
        """The provider's router and everything behind it; routes back to what gateways hide are the caller's to add."""
        return Station(
            name=wiring.WORLD,
            namespace=self._namespace(wiring.WORLD),
            card="x0",
            mac="",
            addresses=wiring.WORLD_ADDRESSES,
        )

    def run(self, namespace: str, *argv: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """A program in one of the lab's namespaces: a host's or station's, or ``fab``, ``ctl``, ``world``."""
        own = self.record.prefix + "-"
        return namespaces.run(namespace if namespace.startswith(own) else own + namespace, *argv, timeout_s=timeout_s)

    def station(
        self, host: str, port: str, mac: str, addresses: Sequence[str], gateways: Sequence[str] = ()
    ) -> Station:
        """A namespace with one card on ``host`` that is the logical port; ``addresses`` with length: ``10.0.1.11/24``."""
        namespace = f"{self.record.prefix}-{port.replace('/', '.')}"
        return station.attach(
            self.host(host), namespace=namespace, port=port, mac=mac, addresses=addresses, gateways=gateways
        )

    def customer(self, name: str, addresses: Sequence[str], *, vlan: int = 0, gateways: Sequence[str] = ()) -> Station:
        """A router and everything behind it on the provider's network, on a VLAN of it: a tenant's own site, another uplink."""
        cables = self._namespace(wiring.FABRIC)
        made, device = station.beside(
            self._namespace(name), name=name, cables=cables, addresses=addresses, gateways=gateways
        )
        if vlan:
            switch = VlanSwitch(
                namespace=cables, directory=self.directory / "vlans", outer=wiring.OUTSIDE, programs=self.programs
            )
            switch.up()
            switch.join(device, vlan)
        else:
            namespaces.ip([("link", "set", device, "master", wiring.OUTSIDE)], name=cables)
        return made

    def daemons(self) -> dict[str, int]:
        """Every daemon, ``h1/ovn-controller``, with its process; 0 when it does not run."""
        named = [("central", name) for name in DAEMONS]
        named += [(host, name) for host in self.record.numbers() for name in HOST_DAEMONS]
        return {f"{on}/{name}": daemons.running(self.directory / on / f"{name}.pid") for on, name in named}

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
        starting.start(self.central, list(self.hosts.values()), keys=self.directory / "authority")
        self.record = self.record.with_phase("up")
        self.record.write(self.directory)

    def _begin(self) -> None:
        """Says on disk what will be made, then makes what daemons find."""
        self.record = self.record.with_phase("coming up")
        (register() / f"{self.record.prefix}.lab").symlink_to(self.directory)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.record.write(self.directory)
        if not self.record.dummy:
            wiring.make(self.record.prefix, list(self.hosts.values()))

    def remove(self) -> None:
        """As ``down``, for who holds the lab's lock."""
        daemons.kill_all(self.directory)
        if not self.record.dummy:
            while own := namespaces.named(f"{self.record.prefix}-"):  # an `ip` of a killed `up` may still be at work
                daemons.end([pid for name in own for pid in namespaces.processes(name)])
                namespaces.ip([("netns", "del", name) for name in own])
        shutil.rmtree(self.directory, ignore_errors=True)
        (register() / f"{self.record.prefix}.lab").unlink(missing_ok=True)


def _refuse_other(lab: Lab, known: Lab | None) -> None:
    """Raises CONFLICT where prefix, namespaces or directory are somebody else's."""
    prefix = lab.record.prefix
    if known is not None and known.directory != lab.directory:
        raise CalabashError(
            f"prefix {prefix} is the lab's in {known.directory}",
            reason=Reason.CONFLICT,
            hint=f"take another --prefix, or `calabash net down --prefix {prefix}`",
        )
    if known is not None and known.record.phase == "up" and known.record != lab.record.with_phase("up"):
        raise CalabashError(
            f"network {prefix} is up with {len(known.record.hosts)} hosts and {len(known.record.gateways)} gateway hosts"
            f"{', without packets' if known.record.dummy else ''}",
            reason=Reason.CONFLICT,
            hint=f"`calabash net down --prefix {prefix}` first, or take another --prefix",
        )
    if known is None and not lab.record.dummy and (foreign := namespaces.named(f"{prefix}-")):
        raise CalabashError(
            f"network namespace {foreign[0]} exists and is of no lab",
            reason=Reason.CONFLICT,
            hint="take another --prefix, or remove it: ip netns del " + foreign[0],
        )
    if known is None and lab.directory.exists() and any(lab.directory.iterdir()):
        raise CalabashError(
            f"{lab.directory} is not empty and is of no lab", reason=Reason.CONFLICT, hint="name another directory"
        )


def _need_root() -> None:
    if os.geteuid() != 0:
        raise CalabashError(
            "networks in namespaces need root",
            reason=Reason.NOT_PERMITTED,
            hint="sudo calabash net up, or `calabash net up --dummy` for the control plane without packets",
        )
    if not Path("/dev/net/tun").exists():
        raise CalabashError(
            "/dev/net/tun is missing, of which Open vSwitch's userspace datapath makes its ports",
            reason=Reason.UNSUPPORTED,
            hint="modprobe tun, or `calabash net up --dummy` for the control plane without packets",
        )
    missing = programs.missing_commands()
    if missing:
        raise CalabashError(
            f"the command ip is missing, of package {missing[0]}",
            reason=Reason.UNSUPPORTED,
            hint=f"apt-get install {missing[0]}",
        )
