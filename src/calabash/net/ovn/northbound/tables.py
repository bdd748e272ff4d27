"""Tables and columns of OVN's northbound database that Calabash owns, with the default of each column.

An owned row contains every listed column of its table, so that a change by another client is detected and reverted. Columns
that are not listed belong to OVN or are unused. In maps shared with OVN only the listed keys are owned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from calabash.net.ovn.northbound.rows import CLOSED, GATEWAYS, KEY, OWNER, RESTING, Value

EMPTY_SET: frozenset[str] = frozenset()
EMPTY: Mapping[str, str] = {}
IDS = frozenset((OWNER, KEY))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedTable:
    """Owned columns of one table.

    Args:
        columns: the default of each owned column; sets are frozensets, maps mappings, an optional value None.
        named: rows are identified by ``name``; otherwise by ``external_ids["calabash:key"]``.
        shared: owned keys of each map that other clients write too.
        single: the table has exactly one row, which is never inserted or deleted.
    """

    columns: Mapping[str, Value]
    named: bool = True
    shared: Mapping[str, frozenset[str]] = field(default_factory=lambda: {"external_ids": IDS})
    single: bool = False


SINGLE = "."  # key of the row of a table with a single row
GLOBAL_OPTIONS = frozenset(("bfd-min-rx", "bfd-min-tx", "bfd-mult", "svc_monitor_mac"))

# In an order in which rows can be inserted: referenced tables come first.
TABLES: Mapping[str, OwnedTable] = {
    "NB_Global": OwnedTable(
        columns={"options": EMPTY, "external_ids": EMPTY},
        named=False,
        shared={"options": GLOBAL_OPTIONS, "external_ids": frozenset((GATEWAYS, RESTING))},
        single=True,
    ),
    "Load_Balancer_Health_Check": OwnedTable(columns={"vip": "", "options": EMPTY}, named=False),
    "Gateway_Chassis": OwnedTable(columns={"chassis_name": "", "priority": 0}),
    "DHCP_Options": OwnedTable(columns={"cidr": "", "options": EMPTY}, named=False),
    "DNS": OwnedTable(columns={"records": EMPTY, "options": EMPTY}, named=False),
    "QoS": OwnedTable(
        columns={"priority": 0, "direction": "", "match": "", "action": EMPTY, "bandwidth": EMPTY}, named=False
    ),
    "ACL": OwnedTable(
        columns={"priority": 0, "direction": "", "match": "", "action": "", "log": False, "tier": 0, "options": EMPTY},
        named=False,
    ),
    "Load_Balancer": OwnedTable(
        columns={
            "vips": EMPTY,
            "protocol": None,
            "health_check": EMPTY_SET,
            "ip_port_mappings": EMPTY,
            "selection_fields": EMPTY_SET,
            "options": EMPTY,
        },
        shared={"external_ids": IDS | {CLOSED}},
    ),
    "Logical_Router_Port": OwnedTable(
        columns={
            "mac": "",
            "networks": EMPTY_SET,
            "peer": None,
            "enabled": None,
            "gateway_chassis": EMPTY_SET,
            "options": EMPTY,
            "ipv6_ra_configs": EMPTY,
        }
    ),
    "Logical_Router_Static_Route": OwnedTable(
        columns={
            "ip_prefix": "",
            "nexthop": "",
            "output_port": None,
            "policy": None,
            "route_table": "",
            "bfd": None,
            "options": EMPTY,
        },
        named=False,
    ),
    "Logical_Router_Policy": OwnedTable(
        columns={
            "priority": 0,
            "match": "",
            "action": "",
            "nexthops": EMPTY_SET,
            "bfd_sessions": EMPTY_SET,
            "options": EMPTY,
        },
        named=False,
    ),
    "NAT": OwnedTable(
        columns={
            "type": "",
            "external_ip": "",
            "logical_ip": "",
            "logical_port": None,
            "external_mac": None,
            "external_port_range": "",
            "gateway_port": None,
            "options": EMPTY,
        },
        named=False,
    ),
    "Logical_Switch_Port": OwnedTable(
        columns={
            "type": "",
            "addresses": EMPTY_SET,
            "port_security": EMPTY_SET,
            "options": EMPTY,
            "tag": None,
            "enabled": None,
            "dhcpv4_options": None,
            "dhcpv6_options": None,
        }
    ),
    "Logical_Switch": OwnedTable(
        columns={
            "ports": EMPTY_SET,
            "acls": EMPTY_SET,
            "qos_rules": EMPTY_SET,
            "load_balancer": EMPTY_SET,
            "dns_records": EMPTY_SET,
            "other_config": EMPTY,
        }
    ),
    "Logical_Router": OwnedTable(
        columns={
            "ports": EMPTY_SET,
            "static_routes": EMPTY_SET,
            "policies": EMPTY_SET,
            "nat": EMPTY_SET,
            "load_balancer": EMPTY_SET,
            "enabled": None,
            "options": EMPTY,
        }
    ),
    "Port_Group": OwnedTable(columns={"ports": EMPTY_SET, "acls": EMPTY_SET}),
}
