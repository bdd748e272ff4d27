"""The planner as a service: mirrors pass events to the core, threads carry out its actions, the extender answers.

Threads: one for each mirror, one that decides, a few that write, and one with the event loop of the extender. One lock
guards the core. It is held while a decision is made, and never during a call to the API server.

One of several replicas leads. The others keep their mirrors up to date and refuse requests. A replica that begins to
lead builds a core from its mirrors, without any other state.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec
import structlog

from calabash.adapters.clock import Clock, SteadyClock, SystemClock
from calabash.adapters.kube import KubeClient, is_final
from calabash.adapters.kube.objects.core import Pod
from calabash.api.part_metrics import PLANNER_BINDINGS
from calabash.kubernetes.leader.colocated import Candidate, ColocatedCandidate
from calabash.kubernetes.leader.lease import MARGIN_S, RENEW_EVERY_S, TERM_S, Election
from calabash.kubernetes.leader.loop import LeadershipLoop
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.objects.shards import ALL, Shard
from calabash.kubernetes.planner.apply.api_writes import ApiWrites
from calabash.kubernetes.planner.apply.executor import Executor
from calabash.kubernetes.planner.apply.queue_status import STATUS_EVERY_S, QueueStatusThread
from calabash.kubernetes.planner.decide.core import HOLD_S, MOVE_AFTER_S, MOVE_REST_S, MOVES_AT_ONCE, options_with_moves
from calabash.kubernetes.planner.decide.decisions import still_wanted
from calabash.kubernetes.planner.decide.extender_answers import BindAnswer, BindVerdict, FilterAnswer
from calabash.kubernetes.planner.decide.unused_plans import REFUSED_S
from calabash.kubernetes.planner.lead.exclusive import ExclusiveCandidate, PlannerLeases
from calabash.kubernetes.planner.lead.handover import Handover, HandoverThread
from calabash.kubernetes.planner.serve.extender import Extender, extender_server
from calabash.kubernetes.planner.serve.status import BOUNDS as STATUS_BOUNDS
from calabash.kubernetes.planner.serve.status import PlannerStatus
from calabash.kubernetes.planner.state.facts import Action, SweepPod
from calabash.kubernetes.planner.term import DecisionFailedError, TermCore, deciding
from calabash.kubernetes.planner.watch.facts_from_objects import pod_facts
from calabash.model.errors import CalabashError
from calabash.transport.small_server import SmallServer

log = structlog.get_logger(__name__)

DECIDE_EVERY_S = 1.0
BETWEEN_CYCLES_S = 0.002  # pause in which other threads get the lock
WAIT_FOR_LEAD_S = 0.1
BIND_S = MARGIN_S - 0.5  # a binding begun while leading ends before another planner leads
STUCK_S = 15.0  # without a decision for this long, the planner is not healthy
NOT_LEADING = FilterAnswer(node=None, text="this planner does not lead")


class Handshake(StrEnum):
    """EXTENDER: kube-scheduler asks the planner about each pod. AFFINITY: it does not ask; pods get candidate nodes."""

    EXTENDER = "extender"
    AFFINITY = "affinity"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """Settings of the planner.

    Args:
        nominate_nodes_min: number of nodes from which pods are nominated: a write that saves kube-scheduler work.
        nominate_claims_nodes_min: as ``nominate_nodes_min``, for pods that name claims. It is smaller, because for such
            a pod kube-scheduler reads the resource slices of all nodes for each node that it checks.
        host, port: address of the extender.
        status_host, status_port: address of probes and metrics; "": all addresses, negative: not served.
        identity: name of this replica in the lease; "": generated.
        workers: greatest number of concurrent writes to the API server; as many bindings may be written in addition.
        hold_s: seconds for which the binding of a gang's first member is held until the last one is ready.
        refused_s: seconds for which kube-scheduler may refuse a planned pod; see ``unused_plans``.
        scheduler_lease: name of the Lease of a kube-scheduler in each replica's pod; "": kube-scheduler runs elsewhere.
        handshake: how kube-scheduler learns the planned node.
        status_every_s: seconds between updates of queue statuses.
        shard: the part of the cluster for which the planner decides.
        system_namespaces: namespaces, beside ``namespace``, whose pods may have a system priority.
        moves_at_once, move_after_s, move_rest_s: see ``core.options_with_moves``. half_life_s: see ``sched.Options``.
        topology_levels: keys of node labels, outermost first; see ``gangs.near``.
    """

    host: str = "127.0.0.1"
    port: int = 7070
    status_host: str = ""
    status_port: int = -1
    namespace: str = "calabash-system"
    identity: str = ""
    workers: int = 64
    hold_s: float = HOLD_S
    refused_s: float = REFUSED_S
    nominate_nodes_min: int = 1000
    nominate_claims_nodes_min: int = 10
    term_s: float = TERM_S
    renew_every_s: float = RENEW_EVERY_S
    scheduler_lease: str = ""
    status_every_s: float = STATUS_EVERY_S
    handshake: Handshake = Handshake.EXTENDER
    moves_at_once: int = MOVES_AT_ONCE
    move_after_s: float = MOVE_AFTER_S
    move_rest_s: float = MOVE_REST_S
    half_life_s: float = 0.0
    topology_levels: tuple[str, ...] = ()
    shard: Shard = ALL
    system_namespaces: tuple[str, ...] = ("kube-system",)


class PlannerService(TermCore):
    """The planner service; see the module's description. Implements the Protocols of its parts."""

    def __init__(self, client: KubeClient, settings: PlannerSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        leases = PlannerLeases(client, namespace=settings.namespace, now_s=time.monotonic)
        candidate = _candidate(client, settings, leases)
        lead = LeadershipLoop(candidate, every_s=settings.renew_every_s, stepped=self._stepped)
        at_once, after_s, rest_s = settings.moves_at_once, settings.move_after_s, settings.move_rest_s
        options = options_with_moves(at_once=at_once, after_s=after_s, rest_s=rest_s)
        super().__init__(
            client,
            lead,
            SteadyClock(clock or SystemClock()),  # setting the system clock moves no deadline
            hold_s=settings.hold_s,
            refused_s=settings.refused_s,
            options=replace(options, half_life_s=settings.half_life_s),
            shard=settings.shard,
            levels=settings.topology_levels,
            system_namespaces=frozenset((*settings.system_namespaces, settings.namespace)),
            unbound=settings.handshake is Handshake.AFFINITY,
        )
        self._stopping = threading.Event()
        self._api_server_down = False
        self._wait_s = DECIDE_EVERY_S  # until the next decision without an event
        self._writes = ApiWrites(client, may_write=self._may_write, bind_s=BIND_S)
        self._queues = QueueStatusThread(client, self._lock, self.mirrors, settings.status_every_s, self._clock)
        self._executor = Executor(self._writes, self, workers=settings.workers)
        self.extender = Extender(self, hold_s=settings.hold_s, writers=settings.workers)
        self.server = extender_server(self.extender, (settings.host, settings.port), healthy=self.is_healthy)
        self._status: SmallServer | None = None
        if settings.status_port >= 0:
            status = PlannerStatus(self, lambda: leases.is_held(settings.shard.lease))
            self._status = SmallServer(
                status.handle,
                (settings.status_host, settings.status_port),
                name="planner-status",
                bounds=STATUS_BOUNDS,
            )
        self._handover = HandoverThread(
            Handover(
                client,
                settings.shard,
                self.mirrors.partition,
                planner=self,
                lives=leases.is_held,
                now_s=time.monotonic,
            ),
            self.mirrors.partition.moved,
        )
        self._thread = threading.Thread(target=self._run, name="planner-decide", daemon=True)

    def start(self) -> None:
        """Start all threads and servers. Raises OSError if the extender's address cannot be bound."""
        self.server.start()
        if self._status is not None:
            self._status.start()
        self.lead.start()
        self.skipped.start()
        self.mirrors.start()
        self._executor.start()
        self._thread.start()
        self._queues.start()
        if not self._settings.shard.everything:
            self._handover.start()

    def stop(self, *, resign: bool = True) -> None:
        """Stop all threads and servers. With ``resign``, the lease is given back after the last write has ended."""
        self._stopping.set()
        self._due.set()
        self.lead.stop()
        self._handover.stop()
        self._thread.join()
        self._queues.stop()
        self.server.stop()
        if self._status is not None:
            self._status.stop()
        self.extender.close()
        self._executor.stop()
        self.mirrors.stop()
        self.skipped.stop()
        if resign:
            self.lead.resign()

    # ---- what the extender asks -----------------------------------------------------------------------------------

    def is_healthy(self) -> bool:
        """Return False if this planner leads and its last decision is older than STUCK_S, so its answers are stale."""
        return self._core is None or time.monotonic() - self._decided_at < STUCK_S

    def unsynced(self) -> list[str]:
        return self.mirrors.unsynced()

    def skipped_counts(self) -> Mapping[str, int]:
        return self.skipped.counts()

    def planned_node(self, uid: str) -> str | None:
        core = self._core
        if core is None or (not self._shard.everything and core.store.has_claims(uid)):
            return None  # a planner of a part notes under the lock where claims may be allocated
        return core.answers.planned_node(uid)

    def filter(self, uid: str, offered: list[str], nominated: str, pod: bytes) -> FilterAnswer | None:
        with self._lock:
            if self._core is None:
                return NOT_LEADING
            if uid not in self._core.store.entries:  # not seen yet, or requests no devices
                facts = pod_facts(self.mirrors.keep_pod(msgspec.json.decode(pod, type=Pod)), self._shard.scheduler)
                if facts is None:
                    return None
                self._core.pod_changed(facts, self._clock.now_s())
                if facts.claims and uid not in self._core.store.entries:
                    return None  # it requests no devices of ours
            answer = self._core.answers.filter(uid, offered, nominated, self._clock.now_s())
        self._due.set()
        return None if answer.anywhere else answer

    def preempt(self, uid: str, offered: list[str]) -> list[str]:
        with self._lock:
            return self._core.answers.preempt(uid, offered) if self._core else []

    def bind(self, pod: PodName, node: str) -> BindAnswer:
        """Return the verdict about a binding. Raises CalabashError if this planner does not lead."""
        with self._lock:
            if self._core is None:
                raise CalabashError(NOT_LEADING.text)
            if pod.uid not in self._core.store.entries:
                seen = self.last_seen(pod)
                if seen is not None and seen.metadata.uid == pod.uid and pod_facts(seen) is None:
                    return BindAnswer(verdict=BindVerdict.GO)
            answer = self._core.answers.bind(pod.uid, node, self._clock.now_s())
            ready = self._core.answers.released_holds()
        if ready:
            self.server.call_soon(lambda: self.extender.release_held(ready))
        return answer

    def write_binding(self, pod: PodName, node: str, answer: BindAnswer) -> None:
        plan = answer.plan
        if plan is None:  # the pod requests no devices
            self._writes.bind(pod, node)
            return
        ok, refusal = False, ""
        try:
            self._writes.bind(pod, node, plan)
            ok = True
        except CalabashError as error:
            refusal = error.message if is_final(error) else ""
            raise
        finally:
            self.figures.count(PLANNER_BINDINGS, "ok" if ok else "failed")
            with self._lock:
                if self._core is not None:
                    self._core.answers.binding_written(pod.uid, plan.id, ok=ok)
                    if refusal:
                        self._core.decisions.binding_refused(pod.uid, plan.id, refusal, self._clock.now_s())

    def cancel_hold(self, uid: str) -> None:
        with self._lock:
            if self._core is not None:
                self._core.answers.cancel_hold(uid)

    # ---- what the executor asks -----------------------------------------------------------------------------------

    def last_seen(self, pod: PodName) -> Pod | None:
        return self.mirrors.get_pod(pod.name, pod.namespace)

    def is_wanted(self, action: Action) -> bool:
        if isinstance(action, SweepPod):
            return self._may_write()
        with self._lock:
            entry = self._core.store.entries.get(action.pod.uid) if self._core is not None else None
            if entry is None or not self._may_write():
                return False
            return still_wanted(entry, action)

    def plan_written(self, uid: str, plan_id: str, *, ok: bool) -> None:
        with self._lock:
            if self._core is not None:
                self._core.decisions.plan_written(uid, plan_id, ok=ok)

    def eviction_refused(self, uid: str, message: str) -> None:
        with self._lock:
            if self._core is not None:
                self._core.decisions.eviction_refused(uid, message, self._clock.now_s())
        self._due.set()

    def write_refused(self, action: Action, message: str) -> None:
        with self._lock:
            if self._core is not None:
                self._core.decisions.write_refused(action, message, self._clock.now_s())
        self._due.set()

    def pod_deleted(self, pod: PodName) -> None:
        with self._lock:
            if self._core is not None:
                self._core.pod_deleted(pod.uid)
        self._due.set()

    def is_busy(self, node: str) -> bool:
        """Return True if a binding to the node, or a plan for it, is being written."""
        with self._lock:
            binding = self._core is not None and self._core.store.has_pending_binding(node)
        return binding or self._executor.writes_for(node)

    # ---- threads --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._due.wait(self._wait_s if self._core is not None else WAIT_FOR_LEAD_S)
            self._due.clear()
            try:
                if self._follow_term():
                    self.server.call_soon(self.extender.refuse_all_held)
                self._decide_once()
            except DecisionFailedError as error:
                log.exception("a decision failed")
                cause = error.__cause__
                self._recover(cause if isinstance(cause, Exception) else error)
                self.server.call_soon(self.extender.refuse_all_held)
            except Exception:
                log.exception("a decision could not be carried out")
                self._stopping.wait(DECIDE_EVERY_S)

    def _stepped(self, answered: bool) -> None:
        if answered and self._api_server_down:  # end the pauses of watches and writes
            self.mirrors.retry_now()
            self._executor.retry_now()
        self._api_server_down = not answered
        self._due.set()

    def _decide_once(self) -> None:
        with self._lock:
            core = self._core
            if core is None:
                return
            now_s = self._clock.now_s()
            with deciding(self.figures):
                core.decide(now_s)
            due_in_s = core.store.scheduler.due_in_s(now_s)
            self._wait_s = DECIDE_EVERY_S if due_in_s is None else min(due_in_s, DECIDE_EVERY_S)
            actions = core.take_actions()
            refused, ready = core.answers.take_expired(now_s), core.answers.release_ready_holds()
            nodes = len(core.store.scheduler.nodes)
            self._writes.set_nomination(
                pods=nodes >= self._settings.nominate_nodes_min,
                claims=nodes >= self._settings.nominate_claims_nodes_min,
            )
            self._decided_at = time.monotonic()
        self._executor.put(actions)
        self._report_set_aside()
        if refused:
            self.server.call_soon(lambda: self.extender.refuse_held(refused))
        if ready:
            self.server.call_soon(lambda: self.extender.release_held(ready))
        if due_in_s == 0:
            self._stopping.wait(BETWEEN_CYCLES_S)
            self._due.set()

    def _report_set_aside(self) -> None:
        """Write the conditions of pods on which decisions fail, without the executor.

        The executor would drop these reports, because the core has no entries of the pods.
        """
        reports, self._set_aside_reports = self._set_aside_reports, []
        for report in reports:
            try:
                self._writes.report(report)
            except CalabashError as error:
                log.warning("the report of a set-aside pod was not written", pod=report.pod.text, error=error.message)


def _candidate(client: KubeClient, settings: PlannerSettings, leases: PlannerLeases) -> Candidate:
    shard = settings.shard
    election = Election(
        client,
        namespace=settings.namespace,
        name=shard.lease,
        identity=settings.identity or f"{shard.lease}-{secrets.token_hex(4)}",
        now_s=time.monotonic,
        term_s=settings.term_s,
    )
    candidate = ExclusiveCandidate(election, leases, shard)
    lease = settings.scheduler_lease
    if not lease:
        return candidate
    return ColocatedCandidate(candidate, client, namespace=settings.namespace, lease=lease, host=socket.gethostname())
