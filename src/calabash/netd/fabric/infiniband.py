"""InfiniBand: a tenant's partition is a P_Key that UFM keeps, named ``cb-TENANT``. The name is the only record of whose it is,
so a controller that was killed finds everything again. P_Keys of other names are not ours and stay as they are."""

from __future__ import annotations

import re
from collections.abc import Collection

from calabash.model.errors import CalabashError, Reason
from calabash.model.fabric import FabricPlane
from calabash.net.fabric_partitions import PKEY_DEFAULT, FabricPartition, free_number
from calabash.netd.fabric.driver import FabricView, partition_of
from calabash.seams.ufm import UfmClient

PREFIX = "cb-"
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")
_COMPLETE = re.compile(r"([-.a-zA-Z0-9]|_[0-9a-f]{2})+")


def partition_name(tenant: str) -> str:
    """What a tenant's partition is called: its name, other bytes than letters, digits, ``-`` and ``.`` as ``_XX``."""
    return PREFIX + "".join(chr(byte) if byte in _PLAIN else f"_{byte:02x}" for byte in tenant.encode())


def tenant_of_partition(name: str) -> str:
    """Whose it is, "" where it is no name of ours."""
    told = name.removeprefix(PREFIX)
    if told == name or not _COMPLETE.fullmatch(told):
        return ""
    plain = re.sub(rb"_([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), told.encode())
    tenant = plain.decode(errors="replace")
    return tenant if partition_name(tenant) == name else ""


class InfinibandFabric:
    """P_Keys ``first`` to ``last`` are given to Calabash; what has another number is foreign whatever its name."""

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

    def seen(self) -> FabricView:
        """Ports that are full members of the managers' own partition reach every port of the fabric: they are exposed."""
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
        """Raises NO_CAPACITY, and UNSUPPORTED for a manager that does not keep names: it would never know whose it is."""
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
                f"P_Key {number:#x} was asked for as {name!r} and is not there under that name",
                reason=Reason.UNSUPPORTED,
                hint="UFM 6.22 and later keep names of partitions",
            )
        return number

    def attach(self, number: int, addresses: Collection[str]) -> None:
        self._ufm.add(number, addresses)

    def release(self, number: int, addresses: Collection[str]) -> None:
        self._ufm.remove(number, addresses)

    def drop(self, number: int) -> None:
        self._ufm.delete(number)
