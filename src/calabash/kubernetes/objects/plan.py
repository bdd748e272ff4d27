"""The plan of a pod: the slices of each of its containers, stored as JSON in an annotation of the pod.

The planner writes the plan before the pod is bound, and the agent of the node carries it out. Decoding is strict,
because any user who may write annotations of the pod might have written the plan.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from calabash.model.device import DeviceUuid, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import ComputePolicy, ModeName, Placement, Slice
from calabash.model.stated_version import require_stated
from calabash.model.versions import POD_PLAN

PLAN_BYTES_MAX = 64 * 1024
MEMORY_MIB_MAX = 2**31

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class PlannedSlice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The slice of one device that a container gets.

    ``memory_mib`` 0 means no limit of memory, and ``core_percent`` 0 no guarantee of compute. The other fields have the
    meaning that they have in ``model.Slice``.
    """

    device: Annotated[str, msgspec.Meta(min_length=1, max_length=96)]
    memory_mib: Annotated[int, msgspec.Meta(ge=0, le=MEMORY_MIB_MAX)]
    core_percent: Annotated[int, msgspec.Meta(ge=0, le=100)]
    profile: Annotated[str, msgspec.Meta(max_length=32)] = ""
    start: Annotated[int, msgspec.Meta(ge=-1, le=63)] = -1
    part: Annotated[int, msgspec.Meta(ge=-1, le=63)] = -1
    spill_mib: Annotated[int, msgspec.Meta(ge=0, le=MEMORY_MIB_MAX)] = 0

    @classmethod
    def from_slice(cls, part: Slice) -> PlannedSlice:
        """Return the planned slice that corresponds to a ``Slice`` of a placement."""
        return cls(
            device=part.device,
            memory_mib=part.memory_mib,
            core_percent=part.core_percent,
            profile=part.profile,
            start=part.start,
            part=part.part,
            spill_mib=part.spill_mib,
        )

    def slice(self) -> Slice:
        """Return this slice as a ``Slice`` of a placement."""
        return Slice(
            device=DeviceUuid(self.device),
            memory_mib=self.memory_mib,
            core_percent=self.core_percent,
            profile=self.profile,
            start=self.start,
            part=self.part,
            spill_mib=self.spill_mib,
        )


class PlannedContainer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The slices of one container, all of one sharing mode."""

    name: _Name
    mode: Annotated[str, msgspec.Meta(min_length=1, max_length=32)]
    policy: ComputePolicy = ComputePolicy.FIXED
    slices: Annotated[tuple[PlannedSlice, ...], msgspec.Meta(min_length=1, max_length=64)]

    def placement(self, node: str) -> Placement:
        """Return the slices as a placement on ``node``, as in an allocation record."""
        return Placement(
            node=NodeName(node),
            mode=ModeName(self.mode),
            slices=tuple(part.slice() for part in self.slices),
        )


class PodPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The plan of one pod.

    ``id`` is unique to the decision that made the plan, so that a plan differs from the one that it replaces.
    """

    version: int = POD_PLAN.newest
    id: _Name
    pod_uid: _Name
    node: _Name
    containers: Annotated[tuple[PlannedContainer, ...], msgspec.Meta(min_length=1, max_length=256)]

    def container(self, name: str) -> PlannedContainer | None:
        """Return the planned slices of a container by its name; None if the plan has none for it."""
        return next((c for c in self.containers if c.name == name), None)


# Created at import: msgspec crashes when two threads create the first decoder of a type at the same time.
_DECODER = msgspec.json.Decoder(PodPlan)


def write_plan(plan: PodPlan) -> str:
    """Return the plan as the JSON text of the annotation."""
    return msgspec.json.encode(plan).decode()


def read_plan(text: str) -> PodPlan:
    """Decode a plan from the JSON of an annotation.

    Raises:
        CalabashError: VERSION_MISMATCH if the plan has an unsupported version, BAD_REQUEST if it is not a valid plan.
    """
    if len(text) > PLAN_BYTES_MAX:
        raise _bad(f"{len(text)} bytes, at most {PLAN_BYTES_MAX}")
    try:
        plan = _DECODER.decode(text)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError, RecursionError) as error:
        require_stated(POD_PLAN, text, "the plan of the pod")
        raise _bad(str(error)) from error
    POD_PLAN.require(plan.version, "the plan of the pod")
    names = [c.name for c in plan.containers]
    if len(set(names)) != len(names):
        raise _bad("a container name occurs twice")
    for container in plan.containers:
        devices = [s.device for s in container.slices]
        if len(set(devices)) != len(devices):
            raise _bad(f"container {container.name} uses a device twice")
        if any(s.spill_mib and s.spill_mib >= s.memory_mib for s in container.slices):
            raise _bad(f"container {container.name} spills all of its memory")
    return plan


def _bad(what: str) -> CalabashError:
    return CalabashError(
        f"the plan of the pod cannot be read: {what}",
        reason=Reason.BAD_REQUEST,
        hint="only the planner writes plans; delete the pod, its controller creates it again",
    )
