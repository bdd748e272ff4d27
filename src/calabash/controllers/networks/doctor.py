"""Diagnosis of a pool's networks: settings, controller, OVN databases, daemons, hosts, rows, and the switch of this host."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.links.offloads import checksums_left_out
from calabash.adapters.ovn.northbound import Northbound
from calabash.adapters.ovn.open_vswitch import LocalSwitch, SwitchPort
from calabash.adapters.ovn.southbound import Chassis, Southbound
from calabash.adapters.pool.client import ApiClient
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.supervisor import LOG_FILE, read_restarts, supervisor_pid
from calabash.controllers.networks.desired_rows import Surroundings, owner_rows
from calabash.controllers.networks.main import LOCK_FILE
from calabash.controllers.networks.settings import NETWORK_FILE, NetworkConnection, read_connection
from calabash.controllers.sources.network_source import PoolNetworks
from calabash.controllers.status.progress import SILENT_S
from calabash.model.errors import CalabashError
from calabash.model.network import NetworkGateway, NetworkKind, Vpc
from calabash.net.ovn.northbound.changes import diff
from calabash.net.ovn.northbound.rows import PLATFORM
from calabash.net.ovn.translation.view import NetworkHosts
from calabash.net.store.networks import Networks

WAIT_S = 5.0  # seconds to wait for each database
RECENT_S = 600.0  # restarts of daemons within this time are reported
NAMED = 3  # names in a message; the others are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFinding:
    """Result of one check.

    Args:
        check: name of the check.
        result: ``ok``, ``warn`` or ``fail``.
        text: explanation for the user.
        hint: what the user can do; "" for nothing.
    """

    check: str
    result: str
    text: str
    hint: str = ""


def examine(home: Path, pool: ApiClient, switch: str = "", *, patience_s: float = SILENT_S) -> Iterator[NetworkFinding]:
    """Run all checks and yield their results. Checks that depend on a failed one are left out.

    Args:
        home: home directory of the pool.
        pool: client of the pool's API.
        switch: address of the database of this host's switch; "" if this machine is no host of tenant networks.
        patience_s: seconds to wait until northd and the hosts have carried out a change.
    """
    try:
        connection = read_connection(home)
    except CalabashError as error:
        yield NetworkFinding(check="settings", result="fail", text=error.message, hint=error.hint)
        return
    if connection is None:
        yield NetworkFinding(
            check="settings",
            result="fail",
            text=f"{home} has no {NETWORK_FILE}: this pool has no networks",
            hint="calabash net up",
        )
        return
    yield NetworkFinding(check="settings", result="ok", text=f"northbound at {connection.northbound}")
    networks, finding = _pool_networks(pool)
    yield finding
    yield _controller(home)
    yield from _daemons(connection)
    yield from _databases(connection, networks, patience_s)
    if switch:
        yield from _switch(switch, networks)


def _pool_networks(pool: ApiClient) -> tuple[Networks | None, NetworkFinding]:
    try:
        update = PoolNetworks(pool).fetch_update(-1, 0.0)
    except CalabashError as error:
        return None, NetworkFinding(check="pool", result="fail", text=error.message, hint=error.hint)
    networks = Networks.from_objects((item for item, _ in update.items), update.revision)
    text = f"{len(list(networks.all(Vpc)))} VPCs, {len(update.items)} objects, revision {update.revision}"
    return networks, NetworkFinding(check="pool", result="ok", text=text)


def _controller(home: Path) -> NetworkFinding:
    pid = controller_pid(home)
    if pid:
        return NetworkFinding(check="controller", result="ok", text=f"runs, pid {pid}")
    return NetworkFinding(
        check="controller",
        result="fail",
        text="no controller is controller_pid: changes are not carried out",
        hint=f"the pool starts the controller: see {home}/pool.log",
    )


def _daemons(connection: NetworkConnection) -> Iterator[NetworkFinding]:
    """Check the daemons of a lab that `calabash net up` started, and report recent restarts."""
    lab = Lab.of_prefix(connection.lab) if connection.lab else None
    if lab is None:
        return
    hint = "calabash net up" if not supervisor_pid(lab.directory) else f"see {lab.directory / LOG_FILE}"
    dead = [name for name, pid in lab.daemons().items() if not pid]
    restarts = read_restarts(lab.directory)
    recent = [
        f"{name} ({restart.count})"
        for name, restart in restarts.items()
        if time.time() - restart.last_s < RECENT_S and restart.count
    ]
    if dead:
        yield NetworkFinding(check="daemons", result="fail", text=f"not controller_pid: {_named(dead)}", hint=hint)
    elif not supervisor_pid(lab.directory):
        text = "all are running, but no supervisor would restart them"
        yield NetworkFinding(check="daemons", result="warn", text=text, hint=hint)
    elif recent:
        text = f"all are running; restarted within {RECENT_S / 60:.0f} minutes: {_named(recent)}"
        yield NetworkFinding(check="daemons", result="warn", text=text, hint=hint)
    else:
        yield NetworkFinding(check="daemons", result="ok", text=f"{len(lab.daemons())} are running")


def controller_pid(home: Path) -> int:
    """Return the process ID of the controller of this home, 0 if none is running, -1 if it is unknown."""
    try:
        descriptor = os.open(home / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(descriptor, 32).decode(errors="replace").strip()
        return int(text) if text.isdigit() else -1
    else:
        return 0
    finally:
        os.close(descriptor)


def _databases(connection: NetworkConnection, networks: Networks | None, patience_s: float) -> Iterator[NetworkFinding]:
    credentials = connection.credentials()
    northbound = Northbound(connection.northbound, lock="", credentials=credentials)
    southbound = Southbound(connection.southbound, credentials=credentials)
    try:
        there = True
        for check, session in (("northbound", northbound.session), ("southbound", southbound.session)):
            try:
                session.wait_ready(min(WAIT_S, patience_s))
                yield NetworkFinding(check=check, result="ok", text=str(session))
            except CalabashError as error:
                there = False
                yield NetworkFinding(
                    check=check,
                    result="fail",
                    text=error.message,
                    hint="check that its server is running: calabash net status",
                )
        if not there:
            return
        yield _northd(northbound, southbound, patience_s)
        yield from _hosts(northbound, southbound, networks, patience_s)
        if networks is not None:
            yield _rows(connection, northbound, southbound, networks)
    finally:
        northbound.close()
        southbound.close()


def _northd(northbound: Northbound, southbound: Southbound, patience_s: float) -> NetworkFinding:
    before = northbound.counts()[0]
    # The controller requests a new number every few seconds; wait for one to detect daemons that died since the last.
    northbound.session.wait_for(lambda _: northbound.counts()[0] > before, patience_s)
    asked = northbound.counts()[0]
    done = southbound.session.wait_for(lambda _: southbound.count() >= asked, patience_s)
    if done:
        return NetworkFinding(check="northd", result="ok", text=f"has carried out change {asked}")
    return NetworkFinding(
        check="northd",
        result="fail",
        text=f"has carried out change {southbound.count()} of {asked}",
        hint="check that ovn-northd is running: calabash net status",
    )


def _hosts(
    northbound: Northbound, southbound: Southbound, networks: Networks | None, patience_s: float
) -> Iterator[NetworkFinding]:
    asked = southbound.count()
    southbound.session.wait_for(lambda _: all(c.nb_cfg >= asked for c in southbound.chassis()), patience_s)
    chassis = southbound.chassis()
    silent = [one.name for one in chassis if one.nb_cfg < asked]
    text = f"{len(chassis) - len(silent)} of {len(chassis)} respond"
    if silent or not chassis:
        problem = f"{text}; silent: {_named(silent)}" if silent else "no host has joined"
        yield NetworkFinding(
            check="hosts", result="fail", text=problem, hint="check that ovn-controller is running there"
        )
    else:
        yield NetworkFinding(check="hosts", result="ok", text=text)
    yield from _tunnels(chassis)
    gateways = {one.name for one in chassis if "enable-chassis-as-gw" in one.told.get("ovn-cms-options", "")}
    gateways |= northbound.gateways()
    leaving = len(list(networks.all(NetworkGateway))) if networks is not None else 0
    alive = gateways - set(silent)
    if leaving and len(alive) < 2:
        yield NetworkFinding(
            check="gateways",
            result="warn" if alive else "fail",
            text=f"{leaving} VPCs use {len(alive)} live gateway hosts of {len(gateways)}",
            hint="two are needed to survive the loss of one",
        )
    else:
        yield NetworkFinding(check="gateways", result="ok", text=f"{len(alive)} of {len(gateways)} respond")


def _tunnels(chassis: tuple[Chassis, ...]) -> Iterator[NetworkFinding]:
    """Check that every host has a tunnel address, and that all hosts support the same OVN features."""
    affected = [one.name for one in chassis if not one.addresses]
    if affected:
        yield NetworkFinding(
            check="tunnels",
            result="fail",
            text=f"hosts without a tunnel address: {_named(affected)}",
            hint="set a different ovn-encap-ip on each host",
        )
    datapaths = {one.told.get("datapath-type", "") for one in chassis}
    features = {frozenset(n for n, v in one.told.items() if n.startswith(("ct-", "ovn-ct")) and v) for one in chassis}
    if len(features) > 1 or len(datapaths) > 1:
        yield NetworkFinding(
            check="versions",
            result="warn",
            text=f"hosts differ in their OVN features ({len(features)} sets, datapaths {', '.join(sorted(datapaths))})",
            hint="install the same version of OVN on all hosts",
        )
    else:
        yield NetworkFinding(check="versions", result="ok", text="all hosts support the same features")


def _rows(
    connection: NetworkConnection, northbound: Northbound, southbound: Southbound, networks: Networks
) -> NetworkFinding:
    announced = {
        one.name for one in southbound.chassis() if "enable-chassis-as-gw" in one.told.get("ovn-cms-options", "")
    }
    gateways = tuple(connection.gateways) or tuple(
        sorted({*announced, *northbound.gateways(), *northbound.known_gateways()})
    )
    hosts = NetworkHosts(gateways=gateways, resting=northbound.resting())
    around = Surroundings(hosts=hosts, protected=connection.ranges(), closed=northbound.closed())
    wrong: list[str] = []
    for owner in sorted({PLATFORM, *northbound.owners(), *(vpc.name for vpc in networks.all(Vpc))}):
        try:
            differs = bool(diff(owner_rows(networks, owner, around), northbound.actual(owner)))
        except CalabashError:
            differs = True
        if differs:
            wrong.append("shared rows" if owner == PLATFORM else owner)
    if wrong:
        return NetworkFinding(
            check="rows",
            result="fail",
            text=f"OVN differs from the desired rows for {len(wrong)}: {_named(wrong)}",
            hint="`calabash net vpc show NAME` shows the error of the controller",
        )
    return NetworkFinding(check="rows", result="ok", text="OVN is equal to the desired rows")


def _switch(remote: str, networks: Networks | None) -> Iterator[NetworkFinding]:
    switch = LocalSwitch(remote, timeout_s=WAIT_S)
    try:
        ports = switch.ports()
    except CalabashError as error:
        yield NetworkFinding(
            check="switch", result="fail", text=error.message, hint="check that Open vSwitch is running here"
        )
        return
    finally:
        switch.close()
    broken = [f"{port.iface_id or port.name} ({port.error})" for port in ports.values() if port.error]
    if broken:
        yield NetworkFinding(check="switch", result="fail", text=f"ports with errors: {_named(broken)}")
    else:
        yield NetworkFinding(
            check="switch", result="ok", text=f"{sum(p.ours for p in ports.values())} ports managed by Calabash"
        )
    yield _mtu(ports, networks)
    yield _offloads(ports)


def _mtu(ports: dict[str, SwitchPort], networks: Networks | None) -> NetworkFinding:
    small = []
    for port in ports.values():
        vpc = networks.find(Vpc, port.iface_id.split("/", 1)[0]) if networks is not None else None
        known = networks is not None and networks.get(NetworkKind.PORT, port.iface_id) is not None
        if vpc is not None and known and 0 < port.mtu_bytes < vpc.mtu_bytes:
            small.append(f"{port.iface_id} ({port.mtu_bytes} of {vpc.mtu_bytes} bytes)")
    if small:
        return NetworkFinding(check="mtu", result="fail", text=f"MTU below that of the VPC: {_named(small)}")
    return NetworkFinding(check="mtu", result="ok", text="no port has an MTU below that of its VPC")


def _offloads(ports: dict[str, SwitchPort]) -> NetworkFinding:
    """Check that the managed devices in this network namespace send packets with checksums, which TCP and UDP need.

    Args:
        ports: ports of this host's switch.
    """
    affected = []
    for port in ports.values():
        with suppress(OSError):  # the device is in another namespace, or not a kernel device
            if port.ours and checksums_left_out(port.name):
                affected.append(port.iface_id)
    if affected:
        return NetworkFinding(
            check="offloads",
            result="fail",
            text=f"send without checksums, so only ping works: {_named(affected)}",
            hint="ethtool -K DEVICE tx off, at both ends",
        )
    return NetworkFinding(check="offloads", result="ok", text="managed devices send checksums")


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
