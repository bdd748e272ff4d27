"""Simulated fabric in a file: stands for switches with VRFs (RoCE) and for the NVLink partition manager.

A virtual function is in at most one VRF and a device in at most one NVLink partition; both managers refuse an address that is
in another one, and the NVLink manager refuses partitions across domains. The file outlives the process, like the configuration
of a switch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from calabash.adapters.host.files import write_durably
from calabash.controllers.fabric.driver import FabricView, partition_of
from calabash.model.errors import CalabashError, Reason
from calabash.model.fabric import FabricPlane
from calabash.net.fabric_partitions import FabricPartition, free_number


class SimulatedPartition(msgspec.Struct, forbid_unknown_fields=True):
    """Partition of a simulated plane, as stored in its file."""

    tenant: str
    members: list[str]


class SimulatedFabric:
    """Simulated plane of a fabric, whose partitions are kept in a file.

    Args:
        plane: kind of the fabric.
        file: file with the state of the fabric; created at the first change.
        first, last: range of partition numbers.
        domains: NVLink domain of each address; addresses without an entry share one domain.
    """

    def __init__(
        self, plane: FabricPlane, file: Path, *, first: int, last: int, domains: Mapping[str, str] | None = None
    ) -> None:
        self._plane = plane
        self._file = file
        self._first, self._last = first, last
        self._domains = dict(domains or {})

    @property
    def plane(self) -> FabricPlane:
        return self._plane

    @property
    def divides(self) -> bool:
        return True

    def observe(self) -> FabricView:
        found = [
            FabricPartition(tenant=one.tenant, number=int(number), members=frozenset(one.members))
            for number, one in self._read().items()
        ]
        return FabricView(partitions=tuple(found))

    def allocate(self, tenant: str, seen: FabricView) -> int:
        own = partition_of(seen, tenant)
        if own:
            return own
        content = self._read()
        number = free_number(self._first, self._last, [int(taken) for taken in content])
        content[str(number)] = SimulatedPartition(tenant=tenant, members=[])
        self._write(content)
        return number

    def attach(self, number: int, addresses: Collection[str]) -> None:
        """Add addresses to the partition.

        Raises:
            CalabashError: CONFLICT if an address is in another partition, NOT_FOUND if the partition is missing,
                TOPOLOGY if the members would be in different NVLink domains.
        """
        content = self._read()
        own = content.get(str(number))
        if own is None:
            raise CalabashError(f"partition {number} on {self._plane} does not exist", reason=Reason.NOT_FOUND)
        for other, one in content.items():
            taken = sorted(set(addresses) & set(one.members)) if other != str(number) else []
            if taken:
                raise CalabashError(f"{taken[0]} is in partition {other} on {self._plane}", reason=Reason.CONFLICT)
        own.members = sorted({*own.members, *addresses})
        domains = {self._domains.get(address, "") for address in own.members}
        if self._plane is FabricPlane.NVLINK and len(domains) > 1:
            raise CalabashError(f"partition {number} would be in {len(domains)} NVLink domains", reason=Reason.TOPOLOGY)
        self._write(content)

    def release(self, number: int, addresses: Collection[str]) -> None:
        content = self._read()
        own = content.get(str(number))
        if own is not None:
            own.members = sorted(set(own.members) - set(addresses))
            self._write(content)

    def drop(self, number: int) -> None:
        """Delete the partition. Raises CalabashError (CONFLICT) if it has members."""
        content = self._read()
        own = content.pop(str(number), None)
        if own is not None and own.members:
            raise CalabashError(f"partition {number} on {self._plane} is not empty", reason=Reason.CONFLICT)
        self._write(content)

    def _read(self) -> dict[str, SimulatedPartition]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, SimulatedPartition])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            raise CalabashError(
                f"{self._file} is not the file of a simulated fabric: {error}", reason=Reason.BAD_FILE
            ) from None

    def _write(self, content: Mapping[str, SimulatedPartition]) -> None:
        write_durably(self._file, msgspec.json.encode(content))
