"""InfiniBand driver: the partition of a tenant is a P_Key in UFM, named ``cb-TENANT``.

The tenant of a partition is stored only in this name, so a controller that was restarted finds all partitions. P_Keys
with other names belong to other software and are never changed.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from calabash.adapters.ufm import UfmClient
from calabash.controllers.fabric.driver import FabricView, partition_of
from calabash.model.errors import CalabashError, Reason
from calabash.model.fabric import FabricPlane
from calabash.net.fabric_partitions import PKEY_DEFAULT, FabricPartition, free_number

PREFIX = "cb-"
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")
_COMPLETE = re.compile(r"([-.a-zA-Z0-9]|_[0-9a-f]{2})+")


def partition_name(tenant: str) -> str:
    """Return the name of a tenant's partition; bytes other than letters, digits, ``-`` and ``.`` become ``_XX``."""
    return PREFIX + "".join(chr(byte) if byte in _PLAIN else f"_{byte:02x}" for byte in tenant.encode())


def tenant_of_partition(name: str) -> str:
    """Return the tenant that a partition name contains; "" if the name is not one of ``partition_name``."""
    encoded = name.removeprefix(PREFIX)
    if encoded == name or not _COMPLETE.fullmatch(encoded):
        return ""
    plain = re.sub(rb"_([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), encoded.encode())
    tenant = plain.decode(errors="replace")
    return tenant if partition_name(tenant) == name else ""


class InfinibandFabric:
    """Driver for UFM, NVIDIA's manager of InfiniBand fabrics.

    Args:
        ufm: client of UFM's API.
        first, last: range of P_Keys that Calabash may use. P_Keys outside it are never changed, whatever their names.
    """

    def __init__(self, ufm: UfmClient, *, first: int, last: int) -> None:
        self._ufm = ufm
        self._first, self._last = first, last
        self._taken: frozenset[int] = frozenset()

    @property
    def plane(self) -> FabricPlane:
        return FabricPlane.INFINIBAND

    @property
    def divides(self) -> bool:
        return True

    def observe(self) -> FabricView:
        """Return the partitions of Calabash, and the exposed addresses.

        An address is exposed if it is a full member of the management partition, which contains every port of the
        fabric.
        """
        found, exposed = [], set()
        pkeys = self._ufm.pkeys()
        self._taken = frozenset(pkeys)
        for number, pkey in pkeys.items():
            if number == PKEY_DEFAULT:
                exposed = {member.address for member in pkey.guids if member.membership == "full"}
            elif self._first <= number <= self._last and (tenant := tenant_of_partition(pkey.partition)):
                members = frozenset(member.address for member in pkey.guids)
                found.append(FabricPartition(tenant=tenant, number=number, members=members))
        return FabricView(partitions=tuple(found), exposed=frozenset(exposed))

    def allocate(self, tenant: str, seen: FabricView) -> int:
        """Return the P_Key of the tenant, creating it if necessary.

        Raises:
            CalabashError: NO_CAPACITY, or UNSUPPORTED if UFM does not store partition names, which identify tenants.
        """
        own = partition_of(seen, tenant)
        if own:
            return own
        name = partition_name(tenant)
        number = free_number(self._first, self._last, self._taken)
        self._ufm.create(number, name)
        made = self._ufm.pkeys()
        self._taken = frozenset(made)
        if number not in made or made[number].partition != name:
            if number in made and not made[number].guids:
                self._ufm.delete(number)
            raise CalabashError(
                f"P_Key {number:#x} was created as {name!r} but does not have that name",
                reason=Reason.UNSUPPORTED,
                hint="UFM 6.22 and later store partition names",
            )
        return number

    def attach(self, number: int, addresses: Collection[str]) -> None:
        self._ufm.add(number, addresses)

    def release(self, number: int, addresses: Collection[str]) -> None:
        self._ufm.remove(number, addresses)

    def drop(self, number: int) -> None:
        self._ufm.delete(number)
