"""Store of all network objects as one immutable value that checks every change.

``put`` creates or updates an object, and allocates the numbers and addresses that the request leaves empty; ``remove``
deletes an object. Both return a new store and leave the old one unchanged. An invalid change raises CalabashError. An
object that other objects use cannot be removed. Old and new store share all unchanged mappings, so keeping an old store
as a snapshot costs little.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import msgspec

from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, joined
from calabash.model.network import NetworkGateway, NetworkKind, NetworkObject, Port, Vpc, kind_of, vpc_of
from calabash.model.network_services import LoadBalancer
from calabash.net.checks.common import conflict_error, describe, describe_kind, describe_redactable, is_reserved_name
from calabash.net.checks.completion import complete_object
from calabash.net.checks.managed_objects import managed_objects
from calabash.net.checks.subnets import DEFAULT_GROUP
from calabash.net.objects.collection import NetworkObjects
from calabash.net.store.dependents import dependents, foreign_dependents, managed_by, orphans

NAMED_DEPENDENTS = 3  # dependents of an object that a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks(NetworkObjects):
    """Store of network objects. ``Networks()`` is empty, ``Networks.from_objects(items, revision)`` restores a stored state."""

    def put(self, item: NetworkObject, *, platform: bool = False) -> tuple[Self, NetworkObject]:
        """Create or update an object.

        Args:
            item: the object as requested; numbers that are 0 and empty addresses and MACs are kept or allocated.
            platform: permits names reserved for the platform, which begin with ``x-``.

        Returns:
            The new store and the completed object; the same store if nothing changes.

        Raises:
            CalabashError: BAD_REQUEST, NOT_FOUND (a referenced object), CONFLICT (taken, overlapping or immutable),
                NO_CAPACITY (a range or a limit is exhausted), NOT_PERMITTED (a reserved name).
        """
        kind = kind_of(item)
        old = self.get(kind, item.name)
        item = complete_object(self, item, old, platform=platform)
        if item == old:
            return self, item
        after = self
        if old is None and not isinstance(item, Vpc):
            after, item = self.with_managed_objects(item)
        after = after.replaced(kind, item.name, item)
        if old is None and isinstance(item, Vpc):
            after, item = after.with_managed_objects(item)
        return replace(after, revision=self.revision + 1), item

    def remove(self, kind: NetworkKind, name: str, *, cascade: bool = False, platform: bool = False) -> Self:
        """Delete an object together with its managed objects.

        Args:
            cascade: True to delete a VPC with all objects in it; refused for other kinds.
            platform: True to permit names reserved for the platform.

        Returns:
            The new store.

        Raises:
            CalabashError: NOT_FOUND, CONFLICT (another object uses it), NOT_PERMITTED (a reserved name).
        """
        item = self.get(kind, name)
        if item is None:
            raise CalabashError(f"{describe_kind(kind, name[:200])} does not exist", reason=Reason.NOT_FOUND)
        label = name.rsplit("/", 1)[-1]
        if is_reserved_name(name) and not platform:
            raise CalabashError(
                f"{describe(item)} belongs to the platform and is deleted with the object it was created for",
                reason=Reason.NOT_PERMITTED,
            )
        if kind is NetworkKind.SECURITY_GROUP and label == DEFAULT_GROUP:
            raise conflict_error(f"{describe(item)} is deleted only with its VPC", hint="change its rules instead")
        if cascade and kind is not NetworkKind.VPC:
            raise CalabashError(f"{describe(item)}: only a VPC can be deleted together with its dependents")
        if isinstance(item, Vpc):
            self._check_unused(item, foreign_dependents(self, item) if cascade else dependents(self, item))
            after = self._without_vpc(name)
        else:
            made = managed_by(self.of_vpc(vpc_of(name)), item)
            for each in (item, *made):
                self._check_unused(item, (other for other in dependents(self, each) if other not in (item, *made)))
            after = self
            for each in (item, *made):
                after = after.replaced(kind_of(each), each.name, None)
        for orphan in orphans(self, item):
            after = after.replaced(kind_of(orphan), orphan.name, None)
        return replace(after, revision=self.revision + 1)

    def with_managed_objects(self, item: NetworkObject) -> tuple[Self, NetworkObject]:
        """Return the store with the managed objects of ``item``, and ``item`` with the names of its managed ports."""
        after = self
        put: dict[str, None] = {}
        for managed in managed_objects(self, item):
            after, made = after.put(managed, platform=True)
            if isinstance(made, Port):
                put.pop(made.name, None)
                put[made.name] = None
        if not isinstance(item, LoadBalancer | NetworkGateway):
            return after, item
        ports = tuple(put)
        if item.ports not in ((), ports):
            raise conflict_error(
                f"{describe(item)}: its ports are {', '.join(ports) or 'none'}, and cannot be set",
                hint="leave the ports out",
            )
        return after, msgspec.structs.replace(item, ports=ports)

    def _check_unused(self, item: NetworkObject, objects: Iterable[NetworkObject]) -> None:
        named = list(itertools.islice(objects, NAMED_DEPENDENTS + 1))
        if named:
            more = " and others" if len(named) > NAMED_DEPENDENTS else ""
            raise conflict_error(
                Message(
                    "{item} is used by {dependents}{more}",
                    item=describe(item),
                    dependents=joined(", ", map(describe_redactable, named[:NAMED_DEPENDENTS])),
                    more=more,
                ),
                hint="delete these first" + (", or delete everything with --all" if isinstance(item, Vpc) else ""),
            )

    def _without_vpc(self, name: str) -> Self:
        return replace(self, vpcs={vpc: objects for vpc, objects in self.vpcs.items() if vpc != name})
