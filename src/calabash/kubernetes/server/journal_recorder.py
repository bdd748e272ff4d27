"""Record changes of the cluster's pods and devices as events in the server's journal, which users can read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from calabash.adapters.clock import Clock
from calabash.adapters.store import Store
from calabash.kubernetes.server import views
from calabash.kubernetes.server.cluster import ClusterFace, ClusterMoment
from calabash.model.errors import CalabashError

POLL_S = 2.0

log = structlog.get_logger(__name__)

Told = tuple[str, str, str]  # state, reason, text


class ClusterRecorder:
    """Thread that takes a snapshot of the cluster every ``POLL_S`` seconds and records the differences to the last one.

    Args:
        cluster: takes the snapshots.
        store: the database to which events are written.
        clock: gives the times of the events.
        observed: called with each snapshot before the differences are recorded.
    """

    def __init__(
        self,
        cluster: ClusterFace,
        store: Store,
        clock: Clock,
        *,
        observed: Callable[[ClusterMoment], None] = lambda _: None,
    ) -> None:
        self._observed = observed
        self._cluster = cluster
        self._store = store
        self._clock = clock
        self._pods: Mapping[str, Told] | None = None
        self._devices: Mapping[str, Told] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.record_changes()
            except CalabashError as error:
                log.warning("cannot write events", error=error.message)
            except Exception:
                log.exception("cannot compare the cluster with its last snapshot")
            self._stopping.wait(POLL_S)

    def record_changes(self) -> None:
        """Take a snapshot and record its differences to the last one. The first call only takes the snapshot.

        Raises:
            CalabashError: the store cannot be written. The next call records the same differences again.
        """
        moment = self._cluster.moment()
        self._observed(moment)
        pods, devices = _pods(moment), _devices(moment)
        if self._pods is not None:
            at = self._clock.now_s()
            told = [
                {"at": at, **event} for event in (*_of_pods(self._pods, pods), *_of_devices(self._devices, devices))
            ]
            self._store.add_events(told)
        self._pods, self._devices = pods, devices


def _pods(moment: ClusterMoment) -> dict[str, Told]:
    found = {}
    for pod in moment.pods:
        state = views.state_of(pod, moment.parts.get(pod.facts.uid, ()))
        reason, text = views.waiting_reason(pod, state)
        name = f"pod {pod.facts.namespace}/{pod.facts.name}"
        where = f" on node {pod.facts.node}" if pod.facts.node else ""
        why = f": {views.displayed(text, moment.tenants)}" if text else ""
        found[pod.facts.uid] = (state, reason, f"{name}{where}{why}")
    return found


def _of_pods(before: Mapping[str, Told], now: Mapping[str, Told]) -> list[dict[str, Any]]:
    """Return an event for each pod whose state or reason has changed, and for each pod that no longer exists.

    A pod whose text alone has changed gets no event, because texts contain numbers that change often.
    """
    told = []
    for uid, (state, reason, text) in now.items():
        if uid not in before or before[uid][:2] != (state, reason):
            told.append({"kind": state, "allocation": uid, "reason": reason, "message": text})
    gone = (uid for uid in before if uid not in now)
    told += [{"kind": "released", "allocation": uid, "message": before[uid][2]} for uid in gone]
    return told


def _devices(moment: ClusterMoment) -> dict[str, Told]:
    shown = (views.device_view(one) for one in moment.devices)
    return {d.uuid: (d.health, d.cause, f"device {d.index} of node {d.node}") for d in shown}


def _of_devices(before: Mapping[str, Told], now: Mapping[str, Told]) -> list[dict[str, Any]]:
    return [
        {
            "kind": "health",
            "device": uuid,
            "reason": health,
            "message": f"{text} is {health}" + (f": {why}" if why else ""),
        }
        for uuid, (health, why, text) in now.items()
        if uuid in before and before[uuid][:2] != (health, why)
    ]
