"""Order of changes to rows: changes that northd processes incrementally come before those that need a full recomputation.

northd processes the rows of a new port incrementally, within milliseconds. A change of a DNS row makes it recompute all
networks, which takes more than a second for a thousand of them. DNS changes are therefore delayed.
"""

from __future__ import annotations

from collections.abc import Sequence

from calabash.net.ovn.northbound.rows import Change, Update


def without_dns_updates(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Return the changes to make now: all except updates of DNS, unless there are only such updates."""
    names = [isinstance(change, Update) and change.row.table == "DNS" for change in changes]
    if all(names) or not any(names):
        return tuple(changes)
    return tuple(change for change, name in zip(changes, names, strict=True) if not name)
