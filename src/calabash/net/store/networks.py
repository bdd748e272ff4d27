"""The book of networks: every object of every tenant's network as one value, which judges each change.

``put`` completes an object with what is allocated and gives the book with it; ``remove`` the book without it. A book never
changes: what is refused raises CalabashError and leaves it as it was. Nothing gets in that cannot be carried out, and
nothing goes out that something else needs. Books share what did not change, so that a snapshot costs nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from calabash.model.errors import CalabashError, Reason
from calabash.model.network import NetworkGateway, NetworkKind, NetworkObject, Port, Vpc, kind_of, vpc_of
from calabash.model.network_services import LoadBalancer
from calabash.net.checks.common import called, conflict, is_platform, mentioned, titled
from calabash.net.checks.completion import completed
from calabash.net.checks.managed_objects import companions
from calabash.net.checks.subnets import DEFAULT_GROUP
from calabash.net.objects.collection import NetworkObjects
from calabash.net.store.dependents import foreign_users, goes_along, made_for, users

NAMED_USERS = 3  # how many of those that use a thing a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks(NetworkObjects):
    """The book. ``Networks()`` is empty, ``Networks.of(items, revision)`` what was stored."""

    def put(self, item: NetworkObject, *, platform: bool = False) -> tuple[Self, NetworkObject]:
        """Creates or updates an object.

        Args:
            item: as its owner wants it; numbers that are 0, and addresses and MACs that are absent, are allocated, or stay.
            platform: whether the platform asks, whose names begin with ``x-``.

        Returns:
            The book with it, and the object completed. The same book, where it was like this already.

        Raises:
            CalabashError: BAD_REQUEST, NOT_FOUND (names what is not there), CONFLICT (taken, overlaps, cannot change),
                NO_CAPACITY (a range or a bound is exhausted), NOT_PERMITTED (a name of the platform's).
        """
        kind = kind_of(item)
        old = self.get(kind, item.name)
        item = completed(self, item, old, platform=platform)
        if item == old:
            return self, item
        after = self
        if old is None and not isinstance(item, Vpc):
            after, item = self.with_companions(item)
        after = after.replaced(kind, item.name, item)
        if old is None and isinstance(item, Vpc):
            after, item = after.with_companions(item)
        return replace(after, revision=self.revision + 1), item

    def remove(self, kind: NetworkKind, name: str, *, cascade: bool = False, platform: bool = False) -> Self:
        """Deletes an object.

        Args:
            cascade: of a VPC: with all that is in it.
            platform: as for ``put``.

        Raises:
            CalabashError: NOT_FOUND, CONFLICT (something uses it), NOT_PERMITTED (the platform's).
        """
        item = self.get(kind, name)
        if item is None:
            raise CalabashError(f"there is no {called(kind, name[:200])}", reason=Reason.NOT_FOUND)
        label = name.rsplit("/", 1)[-1]
        if is_platform(name) and not platform:
            raise CalabashError(
                f"{titled(item)} is the platform's; it goes with what it was made for", reason=Reason.NOT_PERMITTED
            )
        if kind is NetworkKind.SECURITY_GROUP and label == DEFAULT_GROUP:
            raise conflict(f"{titled(item)} goes with its VPC", hint="change its rules instead")
        if cascade and kind is not NetworkKind.VPC:
            raise CalabashError(f"{titled(item)}: only a VPC is deleted with all that uses it")
        if isinstance(item, Vpc):
            self._check_unused(item, foreign_users(self, item) if cascade else users(self, item))
            after = self._without_vpc(name)
        else:
            made = made_for(self.of_vpc(vpc_of(name)), item)
            for each in (item, *made):
                self._check_unused(item, (user for user in users(self, each) if user not in (item, *made)))
            after = self
            for each in (item, *made):
                after = after.replaced(kind_of(each), each.name, None)
        for orphan in goes_along(self, item):
            after = after.replaced(kind_of(orphan), orphan.name, None)
        return replace(after, revision=self.revision + 1)

    def with_companions(self, item: NetworkObject) -> tuple[Self, NetworkObject]:
        """The book with what the platform puts for ``item``, and ``item`` with the names of its own ports."""
        after = self
        put: dict[str, None] = {}
        for companion in companions(self, item):
            after, made = after.put(companion, platform=True)
            if isinstance(made, Port):
                put.pop(made.name, None)
                put[made.name] = None
        if not isinstance(item, LoadBalancer | NetworkGateway):
            return after, item
        ports = tuple(put)
        if item.ports not in ((), ports):
            raise conflict(
                f"{titled(item)}: its own ports are {', '.join(ports) or 'none'}", hint="leave the ports out"
            )
        return after, replace(item, ports=ports)

    def _check_unused(self, item: NetworkObject, using: Iterable[NetworkObject]) -> None:
        named = list(itertools.islice(using, NAMED_USERS + 1))
        if named:
            more = " and others" if len(named) > NAMED_USERS else ""
            raise conflict(
                f"{titled(item)} is used by {', '.join(mentioned(user) for user in named[:NAMED_USERS])}{more}",
                hint="delete these first" + (", or all with --all" if isinstance(item, Vpc) else ""),
            )

    def _without_vpc(self, name: str) -> Self:
        return replace(self, vpcs={vpc: objects for vpc, objects in self.vpcs.items() if vpc != name})
