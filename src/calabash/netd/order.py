"""Which changes of a network go first: those that northd carries out by themselves, before what costs a look at everything.

A new port is a few rows that northd follows incrementally, within milliseconds whatever else there is. For a row of DNS
it draws all networks up again, a second and more for a thousand. So names follow the ports that they are of.
"""

from __future__ import annotations

from collections.abc import Sequence

from calabash.net.ovn.northbound.rows import Change, Update


def first(changes: Sequence[Change]) -> tuple[Change, ...]:
    """The changes that are made now: all but names in DNS, where there is something else; the others show the next time."""
    names = [isinstance(change, Update) and change.row.table == "DNS" for change in changes]
    if all(names) or not any(names):
        return tuple(changes)
    return tuple(change for change, name in zip(changes, names, strict=True) if not name)
