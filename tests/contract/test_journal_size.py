"""Size of the journal of a pool that runs for long: bounded after thousands of short allocations."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from calabash.adapters.store import Retention, Store, open_store
from calabash.model.allocation import AllocationRecord, AllocationState, UsageRecord
from calabash.model.device import DeviceUuid, NodeName
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice

CARD = DeviceUuid("GPU-1")
AGES = 100_000.0  # days: only counts bound the journal
KEPT = Retention(allocations=200, allocation_days=AGES, usage=200, usage_days=AGES, events=400, event_days=AGES)
APART_S = 43_200.0  # so that usage that may not be invoiced yet is less than the journal keeps
LIVES, TRIM_EVERY, SETTLED = 2000, 100, 800
HELD = AllocationId("held")


def _record(name: AllocationId, at: float) -> AllocationRecord:
    part = Slice(device=CARD, memory_mib=1024, core_percent=10)
    return AllocationRecord(
        id=name,
        state=AllocationState.GRANTED,
        request=GpuRequest(memory_mib=1024, core_percent=10),
        placement=Placement(node=NodeName("here"), mode=ModeName("vgpu"), slices=(part,)),
        uid=1000,
        command=("python", "train.py", "--epochs", "1"),
        created_at=at,
        granted_at=at,
    )


def _usage(name: AllocationId, at: float) -> UsageRecord:
    return UsageRecord(
        allocation=name,
        device=CARD,
        tenant="default",
        queue="default",
        from_s=at,
        to_s=at + 1,
        memory_mib=1024,
        core_percent=10,
        allocated_gpu_s=0.1,
        used_gpu_s=0.1,
        memory_mib_s=1024.0,
    )


def _live(store: Store, name: AllocationId, at: float) -> None:
    """Write a whole short allocation, as the agent journals it."""
    store.grant(_record(name, at))
    store.start(name, at=at)
    store.add_events([{"at": at, "kind": kind, "allocation": name, "message": "x" * 80} for kind in ("granted", "end")])
    store.release(name, at=at + 1, reason="done", explanation="", usage=[_usage(name, at)])


def _bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir())


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yield a directory in memory if possible, so that thousands of transactions do not wait for a disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def test_the_journal_does_not_grow_with_the_number_of_short_allocations(directory: Path) -> None:
    store = open_store(f"sqlite:///{directory}/pool.db")
    store.grant(_record(HELD, 0.0))
    sizes: dict[int, int] = {}
    for number in range(LIVES):
        _live(store, AllocationId(f"a{number}"), number * APART_S)
        if number % TRIM_EVERY == TRIM_EVERY - 1:
            while store.trim(KEPT, now_s=number * APART_S):
                pass
            sizes[number + 1] = _bytes(directory)
    assert max(sizes.values()) <= 1.1 * max(size for number, size in sizes.items() if number <= SETTLED)
    assert max(sizes.values()) < 8 << 20
    assert len(store.allocations(ended=True)) == KEPT.allocations + 1
    assert (len(store.usage()), len(store.events())) == (KEPT.usage, KEPT.events)
    assert [r.id for r in store.allocations()] == [HELD]
    store.close()
