"""Ports of this host's Open vSwitch, through its database ``Open_vSwitch``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from calabash.adapters.ovn.replica import Replica, Row
from calabash.adapters.ovn.schema import RowId
from calabash.adapters.ovn.session import Session
from calabash.model.errors import CalabashError, Reason

MARK = "calabash:port"  # key in external_ids of a port of the product; the value is the logical port
INTEGRATION = "br-int"
_TABLES = {
    "Open_vSwitch": ("bridges", "next_cfg", "cur_cfg", "external_ids"),
    "Bridge": ("name", "ports", "datapath_type"),
    "Port": ("name", "interfaces", "external_ids", "tag"),
    "Interface": ("name", "type", "external_ids", "error", "ofport", "mtu", "link_state", "mac_in_use"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPort:
    """Port of the switch.

    Args:
        name: name of the network device.
        iface_id: name of OVN's logical port; "" for none.
        ours: True if :meth:`LocalSwitch.ensure_port` created the port, False if another program did.
        error: why the switch cannot use the device; "" if it can.
        number: OpenFlow port number; 0 until the switch has added the device.
        mtu_bytes: MTU of the device; 0 if it is unknown.
        told: ``external_ids`` of the interface.
    """

    name: str
    iface_id: str = ""
    ours: bool = False
    error: str = ""
    number: int = 0
    mtu_bytes: int = 0
    told: Mapping[str, str] = field(default_factory=dict)


class LocalSwitch:
    """Client of this host's switch. Every method raises UNREACHABLE if the database is not available in time.

    Args:
        remote: ``unix:PATH`` of its database.
        timeout_s: longest wait for the database, or for the switch to carry out a change.
    """

    def __init__(self, remote: str = "unix:/var/run/openvswitch/db.sock", *, timeout_s: float = 10.0) -> None:
        self._timeout_s = timeout_s
        self.session = Session(remote, "Open_vSwitch", _TABLES)

    def close(self) -> None:
        self.session.close()

    def settings(self) -> dict[str, str]:
        """Return the switch's ``external_ids``, for example ``system-id`` and ``ovn-remote``."""
        self.session.wait_ready(self._timeout_s)
        with self.session.reading() as replica:
            return dict(_whole(replica)[1]["external_ids"])

    def ports(self, bridge: str = INTEGRATION) -> dict[str, SwitchPort]:
        """Return the ports of a bridge by name; {} if there is no such bridge."""
        self.session.wait_ready(self._timeout_s)
        with self.session.reading() as replica:
            found = _bridge(replica, bridge)
            rows = [replica.tables["Port"].get(row) for row in found[1]["ports"]] if found else []
            return {row["name"]: _shown(replica, row) for row in rows if row is not None}

    def ensure_port(
        self,
        name: str,
        iface_id: str,
        *,
        bridge: str = INTEGRATION,
        told: Mapping[str, str] | None = None,
        kind: str = "",
    ) -> SwitchPort:
        """Connect a network device to a bridge as a logical port of OVN, if it is not connected yet; return the port.

        Args:
            name: name of the device.
            iface_id: name of the logical port.
            bridge: name of the bridge.
            told: further ``external_ids`` of the interface, such as ``attached-mac``.
            kind: type of the interface in Open vSwitch; "" for an existing device of the system.

        Raises CalabashError: CONFLICT if another program's port has the name, NOT_FOUND without the bridge, BAD_REQUEST
        if the switch cannot use the device, TIMEOUT if the switch does not add the device in time.
        """
        self.session.wait_ready(self._timeout_s)
        wanted = {**(told or {}), "iface-id": iface_id}
        try:
            self._ensure(name, wanted, bridge, kind)
        except CalabashError as error:
            # Another program may have created the port after the copy was read by which this was decided.
            if error.reason is not Reason.CONFLICT or not self._seen(name):
                raise
            self._ensure(name, wanted, bridge, kind)
        port = self.ports(bridge).get(name)
        if port is None or port.error:
            raise CalabashError(
                f"the switch cannot use {name} as {iface_id}: {port.error if port else 'it was removed meanwhile'}",
                hint=f"check that the device {name} exists in the switch's network namespace",
            )
        return port

    def remove_port(self, name: str, *, bridge: str = INTEGRATION) -> bool:
        """Remove a port of the product; return False if there is none. Raises CONFLICT for a port of another program."""
        self.session.wait_ready(self._timeout_s)
        with self.session.reading() as replica:
            row = next((r for r, c in replica.tables["Port"].items() if c["name"] == name), None)
            found = _bridge(replica, bridge)
            if row is None or found is None or row not in found[1]["ports"]:
                return False
            _require_ours(name, replica.tables["Port"][row])
            operations = [_member(found[0], "delete", ["uuid", str(row)])]
        self._settled(operations)
        return True

    def _ensure(self, name: str, wanted: Mapping[str, str], bridge: str, kind: str) -> None:
        with self.session.reading() as replica:
            operations = self._ensured(replica, name, wanted, bridge, kind)
        if operations:
            self._settled(operations)

    def _seen(self, name: str) -> bool:
        """Wait until the local copy of the database has the port; return False if it does not appear in time."""
        return self.session.wait_for(
            lambda replica: any(port["name"] == name for port in replica.tables["Port"].values()), self._timeout_s
        )

    def _ensured(
        self, replica: Replica, name: str, wanted: Mapping[str, str], bridge: str, kind: str
    ) -> list[dict[str, Any]]:
        found = _bridge(replica, bridge)
        if found is None:
            raise CalabashError(
                f"the switch has no bridge {bridge}", reason=Reason.NOT_FOUND, hint="check that OVN runs on this host"
            )
        held = [
            r for r, c in replica.tables["Interface"].items() if c["external_ids"].get("iface-id") == wanted["iface-id"]
        ]
        port = next((r for r, c in replica.tables["Port"].items() if c["name"] == name), None)
        mine = replica.tables["Port"][port]["interfaces"] if port is not None else frozenset()
        others = [replica.tables["Interface"][r]["name"] for r in held if r not in mine]
        if others:
            raise CalabashError(
                f"port {wanted['iface-id']} is at {others[0]} on this host already", reason=Reason.CONFLICT
            )
        if port is None:
            interface: dict[str, Any] = {
                "name": name,
                "type": kind,
                "external_ids": ["map", [list(pair) for pair in wanted.items()]],
            }
            marks = ["map", [[MARK, wanted["iface-id"]]]]
            return [
                {"op": "insert", "table": "Interface", "row": interface, "uuid-name": "interface"},
                {
                    "op": "insert",
                    "table": "Port",
                    "row": {"name": name, "interfaces": ["named-uuid", "interface"], "external_ids": marks},
                    "uuid-name": "port",
                },
                _member(found[0], "insert", ["named-uuid", "port"]),
            ]
        _require_ours(name, replica.tables["Port"][port])
        interface_row = next(iter(mine))
        before = replica.tables["Interface"][interface_row]["external_ids"]
        marks_before = replica.tables["Port"][port]["external_ids"]
        if all(before.get(k) == v for k, v in wanted.items()) and marks_before.get(MARK) == wanted["iface-id"]:
            return []
        return [_pairs("Interface", interface_row, wanted), _pairs("Port", port, {MARK: wanted["iface-id"]})]

    def _settled(self, operations: list[dict[str, Any]]) -> None:
        """Write the operations to the database, and wait until the switch has carried them out."""
        count: list[dict[str, Any]] = [
            {"op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["next_cfg", "+=", 1]]},
            {"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["next_cfg"]},
        ]
        results = self.session.transact([*operations, *count], timeout_s=self._timeout_s)
        target = int(results[-1]["rows"][0]["next_cfg"])
        if not self.session.wait_for(lambda replica: _whole(replica)[1]["cur_cfg"] >= target, self._timeout_s):
            raise CalabashError(
                f"the switch has not taken a change within {self._timeout_s:g}s",
                reason=Reason.TIMEOUT,
                hint="check that ovs-vswitchd runs",
            )


def _whole(replica: Replica) -> tuple[RowId, Row]:
    for row, columns in replica.tables["Open_vSwitch"].items():
        return row, columns
    raise CalabashError("the switch's database is empty", reason=Reason.NOT_FOUND, hint="ovs-vsctl --no-wait init")


def _bridge(replica: Replica, name: str) -> tuple[RowId, Row] | None:
    return next(((r, c) for r, c in replica.tables["Bridge"].items() if c["name"] == name), None)


def _shown(replica: Replica, port: Row) -> SwitchPort:
    interface = next(
        (replica.tables["Interface"][r] for r in port["interfaces"] if r in replica.tables["Interface"]), {}
    )
    told = interface.get("external_ids", {})
    return SwitchPort(
        name=port["name"],
        iface_id=told.get("iface-id", ""),
        ours=MARK in port["external_ids"],
        error=interface.get("error") or "",
        number=max(0, interface.get("ofport") or 0),
        mtu_bytes=interface.get("mtu") or 0,
        told=dict(told),
    )


def _require_ours(name: str, port: Row) -> None:
    if MARK not in port["external_ids"]:
        raise CalabashError(f"port {name} of the switch belongs to another program", reason=Reason.CONFLICT)


def _member(bridge: RowId, word: str, port: list[str]) -> dict[str, Any]:
    where = [["_uuid", "==", ["uuid", str(bridge)]]]
    return {"op": "mutate", "table": "Bridge", "where": where, "mutations": [["ports", word, ["set", [port]]]]}


def _pairs(table: str, row: RowId, pairs: Mapping[str, str]) -> dict[str, Any]:
    return {
        "op": "mutate",
        "table": table,
        "where": [["_uuid", "==", ["uuid", str(row)]]],
        "mutations": [
            ["external_ids", "delete", ["set", list(pairs)]],
            ["external_ids", "insert", ["map", [[key, text] for key, text in pairs.items()]]],
        ],
    }
