"""Who is on a device without a slice of it, and what is done about it. Pure.

Every process that a driver lists belongs to an allocation that has a slice of that device, or to the pool itself, or
it is a *stranger*: a program that was started past the pool, one of another pool, or one of an allocation that runs on
a device it was not given. A process is a stranger when two looks agree, because one that is just ending belongs to
nobody any more; one that this machine does not show at all takes three. What a stranger holds of a device is not
granted to anybody, and the device is given to nobody alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from calabash.adapters.host.processes import Process
from calabash.model.device import DeviceUuid
from calabash.model.request import AllocationId

SIGHTINGS = 2
SIGHTINGS_UNSEEN = 3
TOLERANCE_MIB = 64
TOLERANCE_RATIO = 0.02
OVER_USE_NS = 1_000_000_000


class StrangerPolicy(StrEnum):
    """What happens to a device that strangers are on, and to them."""

    TELL = "tell"  # people are told, and what they hold is not granted
    DRAIN = "drain"  # and the device takes no new work while they are there
    KILL = "kill"  # and they are killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A process that a driver lists. ``process.start_time`` 0: the machine does not show it; ``ours``: the pool's.

    ``part``: the part of the device that it is on; "" for all of it. ``elsewhere``: its slice is another part.
    """

    process: Process
    used_mib: int
    uid: int = -1
    command: str = ""
    allocation: AllocationId | None = None
    ours: bool = False
    part: str = ""
    elsewhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """A process on a device that it has no slice of; ``allocation`` when it is one that has slices elsewhere."""

    device: DeviceUuid
    process: Process
    used_mib: int
    uid: int
    command: str
    allocation: AllocationId | None = None
    sightings: int = 1
    part: str = ""

    @property
    def confirmed(self) -> bool:
        """Whether it has been seen often enough."""
        return self.sightings >= (SIGHTINGS if self.process.start_time else SIGHTINGS_UNSEEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What follows from one look at a device: who is there now, who is new, who is gone, who is to be killed."""

    strangers: tuple[Stranger, ...] = ()
    found: tuple[Stranger, ...] = ()
    gone: tuple[Stranger, ...] = ()
    kill: tuple[Stranger, ...] = ()


def judge(
    known: Iterable[Stranger],
    device: DeviceUuid,
    listed: Sequence[Listed],
    *,
    entitled: Collection[AllocationId],
    policy: StrangerPolicy,
) -> Verdict:
    """One look at one device.

    Args:
        known: who was there at the last look.
        entitled: the allocations that have a slice of the device.
    """
    before = {stranger.process: stranger for stranger in known}
    present: list[Stranger] = []
    for entry in listed:
        at_home = entry.allocation is not None and entry.allocation in entitled and not entry.elsewhere
        if entry.ours or at_home:
            continue
        last = before.get(entry.process)
        present.append(
            Stranger(
                device=device,
                process=entry.process,
                used_mib=entry.used_mib,
                uid=entry.uid,
                command=entry.command,
                allocation=entry.allocation,
                sightings=last.sightings + 1 if last else 1,
                part=entry.part,
            )
        )
    confirmed = [s for s in present if s.confirmed]
    there = {s.process for s in present}
    return Verdict(
        strangers=tuple(present),
        found=tuple(s for s in confirmed if s.process not in before or not before[s.process].confirmed),
        gone=tuple(s for s in before.values() if s.confirmed and s.process not in there),
        kill=tuple(
            s for s in confirmed if policy is StrangerPolicy.KILL and s.process.pid > 1 and s.process.start_time
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OverUse:
    """Memory that the processes of an allocation hold of a device beyond what it was given, by the driver."""

    allocation: AllocationId
    device: DeviceUuid
    used_mib: int
    cap_mib: int
    processes: int = 1

    @property
    def is_excess(self) -> bool:
        """Whether it is more than rounding and what a driver takes for each process."""
        return self.used_mib > self.cap_mib * (1 + TOLERANCE_RATIO) + TOLERANCE_MIB + self.processes


@dataclass(frozen=True, slots=True)
class OverUses:
    """Who holds too much, since when; ``lasting`` are those for whom it is no moment any more, each told of once."""

    since_ns: Mapping[tuple[AllocationId, DeviceUuid], int] = field(default_factory=dict)
    lasting: tuple[OverUse, ...] = ()

    def look(self, uses: Iterable[OverUse], now_ns: int) -> OverUses:
        """After one more look at all allocations whose memory is capped."""
        since: dict[tuple[AllocationId, DeviceUuid], int] = {}
        lasting = []
        for use in uses:
            if not use.is_excess:
                continue
            key = (use.allocation, use.device)
            began_ns = self.since_ns.get(key, now_ns)
            if began_ns >= 0 and now_ns - began_ns > OVER_USE_NS:
                lasting.append(use)
                began_ns = -1  # told
            since[key] = began_ns
        return OverUses(since, tuple(lasting))
