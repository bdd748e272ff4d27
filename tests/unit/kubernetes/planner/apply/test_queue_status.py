"""Status of queue objects."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
from tests.unit.kubernetes.planner.virtual import MEMORY_MIB, Cluster
from tests.unit.kubernetes.planner.world import World, until

from calabash.adapters.kube.objects.resources import QUEUE, KubeQueueStatus
from calabash.kubernetes.planner.apply.queue_status import QueueStatuses, queue_statuses
from calabash.kubernetes.planner.state.facts import NamespaceFacts, QueueFacts
from calabash.model.request import GpuRequest


def test_queue_status_has_used_guaranteed_and_borrowed_devices_and_parents_have_the_sum() -> None:
    cluster = Cluster(
        {"a": 4},
        [
            QueueFacts(name="org", deserved=1.0),
            QueueFacts(name="lab", parent="org", deserved=1.0),
            QueueFacts(name="idle"),
        ],
    )
    cluster.core.namespace_changed(NamespaceFacts(name="team", queue="lab"))
    for _ in range(2):
        cluster.create(GpuRequest())
    cluster.create(GpuRequest(memory_mib=8192, core_percent=25))
    cluster.create(GpuRequest(count=4))
    cluster.settle()
    found = queue_statuses(cluster.core.store)
    memory_mib = found["lab"].memory_mib
    assert 0 <= memory_mib - 2 * MEMORY_MIB - 8192 < 64, "two cards and a slice with what its mode adds"
    lab = KubeQueueStatus(
        allocated=2.25, guaranteed=1.0, borrowed=1.25, pending=4.0, memory_mib=memory_mib, waiting=1, running=3
    )
    assert found["lab"] == found["org"] == lab
    assert found["idle"] == KubeQueueStatus()


def test_status_of_a_queue_below_the_last_level_has_the_error_until_it_is_moved_up(world: World) -> None:
    client = world.client
    world.node("a")
    for i in range(1, 34):
        client.create(QUEUE, {"metadata": {"name": f"c{i}"}, "spec": {"parent": f"c{i - 1}" if i > 1 else ""}})
    service = world.start(status_every_s=0.02)
    until(service.leads, "leads")

    def message(name: str) -> str:
        queue = client.get(QUEUE, name)
        assert queue is not None
        return queue.status.message

    hint = "set a parent that is nearer to the root"
    told = f"queue c33 is at level 33 of the queue tree, the limit is 32 levels; hint: {hint}"
    until(lambda: message("c33") == told, "the message")
    assert message("c32") == ""
    client.patch(QUEUE, "c33", body={"spec": {"parent": "c1"}})
    until(lambda: message("c33") == "", "the message to be gone")


def test_queue_status_is_written_only_when_it_changed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = world.client
    world.node("a")
    client.create(QUEUE, {"metadata": {"name": "default"}})
    client.create(QUEUE, {"metadata": {"name": "other"}})
    service = world.start(status_every_s=0.02)
    until(service.leads, "leads")
    world.pod("p", GpuRequest())

    def status(name: str) -> KubeQueueStatus:
        queue = client.get(QUEUE, name)
        assert queue is not None
        return queue.status

    until(lambda: status("default").running == 1, "written")
    assert status("default").allocated == 1.0
    assert status("default").borrowed == 1.0
    looked, write = threading.Semaphore(0), QueueStatuses.write

    def counted(statuses: QueueStatuses, wanted: Mapping[str, KubeQueueStatus]) -> None:
        write(statuses, wanted)
        looked.release()

    monkeypatch.setattr(QueueStatuses, "write", counted)
    patched, patch = list[str](), client.patch

    def noted(kind: Any, name: str, *words: Any, **more: Any) -> Any:
        patched.append(f"{kind.plural}/{name}")
        return patch(kind, name, *words, **more)

    monkeypatch.setattr(client, "patch", noted)
    assert all(looked.acquire(timeout=60) for _ in range(2))  # one may have begun before
    patched.clear()
    assert all(looked.acquire(timeout=60) for _ in range(5))
    assert [path for path in patched if path.startswith("queues/")] == []
    client.delete(QUEUE, "other")
    assert all(looked.acquire(timeout=60) for _ in range(5))
    assert client.get(QUEUE, "other") is None, "it is not made again by writing its status"
