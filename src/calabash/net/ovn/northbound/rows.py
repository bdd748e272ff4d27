"""Rows of OVN's northbound database as values, both desired and observed.

A row is identified by its table and a key: its name if the table has names, else ``external_ids["calabash:key"]``. Columns
that refer to other rows contain ``Ref``; sets are ``frozenset``, maps ``Mapping``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OWNER = "calabash:vpc"  # external_ids: the VPC of a row, or PLATFORM for rows that several VPCs share
KEY = "calabash:key"  # external_ids: the key of a row
REVISION = "calabash:revision"  # external_ids of a VPC's router: the revision of the store when it was written
GATEWAYS = "calabash:gateways"  # external_ids of NB_Global: all known gateway hosts, comma-separated
RESTING = "calabash:resting"  # external_ids of NB_Global: gateway hosts with the lowest priorities, in order
CLOSED = "calabash:closed"  # external_ids of a load balancer: its closed backends
PLATFORM = "-"


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """Reference to a row by table and key."""

    table: str
    key: str


Atom = str | int | float | bool | Ref
Value = Atom | frozenset[Atom] | Mapping[str, str] | Mapping[str, int] | None
Columns = Mapping[str, Value]
Rows = Mapping[Ref, Columns]


@dataclass(frozen=True, slots=True)
class Insert:
    """Insertion of a row."""

    row: Ref
    columns: Columns


@dataclass(frozen=True, slots=True)
class Update:
    """Update of a row: the desired values of the columns whose observed values differ."""

    row: Ref
    columns: Columns


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletion of a row."""

    row: Ref


Change = Insert | Update | Delete
