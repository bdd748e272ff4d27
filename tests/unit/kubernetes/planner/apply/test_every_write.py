"""Every kind of write of the planner, with every refusal of the API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.unit.adapters.kube.world import until
from tests.unit.kubernetes.planner.apply.test_executor import PLAN, Outcomes
from tests.unit.kubernetes.refusing import RefusingKube

from calabash.adapters.kube.objects.core import NAMESPACE, POD
from calabash.adapters.kube.objects.resources import QUEUE, KubeQueueStatus
from calabash.kubernetes.objects.names import PLAN_GATE
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.planner.apply import executor as module
from calabash.kubernetes.planner.apply.api_writes import ApiWrites
from calabash.kubernetes.planner.apply.executor import Executor
from calabash.kubernetes.planner.apply.queue_status import QueueStatuses
from calabash.kubernetes.planner.state.facts import (
    Action,
    EvictPod,
    Nominate,
    ReleasePod,
    Report,
    SweepPod,
    UngatePod,
    WritePlan,
)
from calabash.model.errors import Reason
from calabash_testing.api_server.client import MemoryKube

HOSTILE, QUIET, COUNT = "hostile", "quiet", 6
KINDS: dict[str, Callable[[PodName], Action]] = {
    "release": lambda pod: ReleasePod(pod=pod, plan=PLAN),
    "ungate": lambda pod: UngatePod(pod=pod),
    "plan": lambda pod: WritePlan(pod=pod, plan=PLAN),
    "nominate": lambda pod: Nominate(pod=pod, node="a"),
    "evict": lambda pod: EvictPod(pod=pod, reason=Reason.PREEMPT, message="for another"),
    "sweep": lambda pod: SweepPod(pod=pod, is_recreated=True, message="refused"),
    "report": lambda pod: Report(pod=pod, reason=Reason.NO_MEMORY, message="no"),
}
REFUSALS = [400, 401, 403, 404, 405, 409, 410, 413, 415, 418, 422, 451, 500, 501, 502, 504]
PATIENCE = [429, 503]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_FIRST_S", 0.001)
    monkeypatch.setattr(module, "_PAUSE_MAX_S", 0.01)


class Writer:
    """An executor on an API server that refuses all requests for the namespace ``hostile``."""

    def __init__(self) -> None:
        memory = MemoryKube()
        self.status = 0
        self.kube = RefusingKube(memory, lambda verb, plural, where, body: self.status if where == HOSTILE else 0)
        for namespace in (HOSTILE, QUIET):
            memory.create(NAMESPACE, {"metadata": {"name": namespace}})
        self.memory = memory
        self.executor = Executor(ApiWrites(self.kube), Outcomes(), workers=2)
        self.executor.start()

    def actions(self, kind: str, namespace: str) -> list[Action]:
        pods = []
        for i in range(COUNT):
            spec = {"containers": [{"name": "main"}], "schedulingGates": [{"name": PLAN_GATE}]}
            made = self.memory.create(POD, {"metadata": {"name": f"p{i}"}, "spec": spec}, namespace)
            pods.append(PodName(uid=made.metadata.uid, namespace=namespace, name=f"p{i}"))
        return [KINDS[kind](pod) for pod in pods]

    def writes(self, namespace: str) -> int:
        return sum(count for (_, _, where), count in self.kube.tried.items() if where == namespace)

    def is_idle(self) -> bool:
        return self.executor.idle() and len(self.executor._reports) == 0


@pytest.fixture
def writer() -> Iterator[Writer]:
    found = Writer()
    yield found
    found.executor.stop()


@pytest.mark.parametrize("status", REFUSALS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_write_ends_and_delays_no_other_namespace(writer: Writer, kind: str, status: int) -> None:
    writer.status = status
    writer.executor.put(writer.actions(kind, HOSTILE))
    writer.executor.put(writer.actions(kind, QUIET))
    until(writer.is_idle)
    assert writer.writes(QUIET) >= COUNT
    attempts = 1 + max(module._CONFLICTS_MAX, module._FAULTS_MAX)
    assert COUNT <= writer.writes(HOSTILE) <= 2 * COUNT * attempts


@pytest.mark.parametrize("status", PATIENCE)
@pytest.mark.parametrize("kind", KINDS)
def test_write_is_made_after_the_api_server_was_overloaded(writer: Writer, kind: str, status: int) -> None:
    writer.status = status
    writer.executor.put(writer.actions(kind, HOSTILE))
    until(lambda: writer.writes(HOSTILE) > 1)
    writer.status = 0
    writer.executor.put(writer.actions(kind, QUIET))
    until(writer.is_idle)
    assert writer.writes(QUIET) >= COUNT


@pytest.mark.parametrize("status", [400, 403, 422])
def test_a_refused_status_of_a_queue_is_written_again_only_when_it_differs(status: int) -> None:
    memory = MemoryKube()
    refused = [True]
    kube = RefusingKube(memory, lambda *_: status if refused[0] else 0)
    for name in ("one", "two"):
        memory.create(QUEUE, {"metadata": {"name": name}, "spec": {}})
    statuses = QueueStatuses(kube)
    for _ in range(5):
        statuses.write({"one": KubeQueueStatus(waiting=1), "two": KubeQueueStatus(waiting=1)})
    assert sum(kube.tried.values()) == 2
    refused[0] = False
    statuses.write({"one": KubeQueueStatus(waiting=2)})
    found = memory.get(QUEUE, "one")
    assert found is not None
    assert found.status.waiting == 2
