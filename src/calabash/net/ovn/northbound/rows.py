"""Rows of OVN's northbound database as values: what a network should look like there, and what was found.

A row is known by its table and a key of ours, which is its name where the table has names and else stands in
``external_ids["calabash:key"]``. Columns that point to other rows hold ``Ref``; sets are ``frozenset``, maps ``Mapping``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OWNER = "calabash:vpc"  # external_ids: the VPC of a row, or PLATFORM for what several share
KEY = "calabash:key"  # external_ids: the key of a row
REVISION = "calabash:revision"  # external_ids of a VPC's router: the revision of the book when it was written
GATEWAYS = "calabash:gateways"  # external_ids of NB_Global: all gateway hosts that are known, with commas
RESTING = "calabash:resting"  # external_ids of NB_Global: those of them that come last in all rows, in their order
CLOSED = "calabash:closed"  # external_ids of a load balancer: its backends whose programs do not listen any more
PLATFORM = "-"


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """One row, by table and key."""

    table: str
    key: str


Atom = str | int | float | bool | Ref
Value = Atom | frozenset[Atom] | Mapping[str, str] | Mapping[str, int] | None
Columns = Mapping[str, Value]
Rows = Mapping[Ref, Columns]


@dataclass(frozen=True, slots=True)
class Insert:
    row: Ref
    columns: Columns


@dataclass(frozen=True, slots=True)
class Update:
    """The columns that differ, as they should be."""

    row: Ref
    columns: Columns


@dataclass(frozen=True, slots=True)
class Delete:
    row: Ref


Change = Insert | Update | Delete
