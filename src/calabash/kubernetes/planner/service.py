"""The planner as a program: mirrors of the API server feed the core, its actions are carried out, kube-scheduler is answered.

Threads: each mirror tells what changed; one decides; a few write; the extender has a loop of its own. One lock guards the
core and is held for as long as one decision takes, never for a call to the API server.

Of several replicas one leads. The others keep their mirrors and answer nothing; who begins to lead builds a core from its
mirrors, which is all that there is to know.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import structlog

from calabash.adapters.clock import Clock, SteadyClock, SystemClock
from calabash.adapters.kube import KubeClient, is_final
from calabash.adapters.kube.objects.core import Pod
from calabash.api.part_metrics import PLANNER_BINDINGS
from calabash.kubernetes.leader.colocated import BesideScheduler, Candidate
from calabash.kubernetes.leader.lease import MARGIN_S, RENEW_EVERY_S, TERM_S, Election
from calabash.kubernetes.leader.loop import Lead
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.objects.shards import ALL, Shard
from calabash.kubernetes.planner.apply.api_writes import Orders
from calabash.kubernetes.planner.apply.executor import Executor
from calabash.kubernetes.planner.apply.queue_status import STATUS_EVERY_S, QueueTeller
from calabash.kubernetes.planner.decide.core import HOLD_S, MOVE_AFTER_S, MOVE_REST_S, MOVES_AT_ONCE, options_with_moves
from calabash.kubernetes.planner.decide.decisions import still_wanted
from calabash.kubernetes.planner.decide.extender_answers import BindAnswer, BindVerdict, FilterAnswer
from calabash.kubernetes.planner.decide.unused_plans import REFUSED_S
from calabash.kubernetes.planner.lead.exclusive import ApartFromOthers, Neighbours
from calabash.kubernetes.planner.lead.handover import Handover, HandoverThread
from calabash.kubernetes.planner.serve.extender import Extender
from calabash.kubernetes.planner.serve.status import BOUNDS as STATUS_BOUNDS
from calabash.kubernetes.planner.serve.status import PlannerStatus
from calabash.kubernetes.planner.state.facts import Action, SweepPod
from calabash.kubernetes.planner.term import CoreOfTerm, DecisionFailedError, deciding
from calabash.kubernetes.planner.watch.facts_from_objects import pod_facts
from calabash.model.errors import CalabashError
from calabash.transport.small_server import SmallServer

log = structlog.get_logger(__name__)

DECIDE_EVERY_S = 1.0
BETWEEN_CYCLES_S = 0.002  # in which others get the lock
WAIT_FOR_LEAD_S = 0.1
BIND_S = MARGIN_S - 0.5  # what was begun while it led is written, or refused, before another leads
STUCK_S = 15.0  # so long without a decision, and kube-scheduler is not made to wait for one
NOBODY = FilterAnswer(node=None, text="this planner does not lead")


class Handshake(StrEnum):
    """EXTENDER: a kube-scheduler of ours asks about every pod. AFFINITY: the cluster's own places them, within a few nodes."""

    EXTENDER = "extender"
    AFFINITY = "affinity"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """How the planner runs.

    Args:
        nominate_nodes_min: from so many nodes on pods are nominated, so that kube-scheduler need not look at all nodes;
            below that one write less is quicker.
        nominate_claims_nodes_min: the same for pods that name claims, for which a node costs kube-scheduler much more: for
            each it reads the slices of all nodes.
        status_host, status_port: where probes and metrics are answered; a port below 0: nowhere, host "": on all addresses.
        identity: name of this replica; empty: one of its own.
        workers: writes to the API server at a time, and bindings as many.
        refused_s: how long kube-scheduler may refuse a pod that holds planned devices, see ``unused``.
        scheduler_lease: name of the Lease of a kube-scheduler that runs beside each replica; empty: it runs elsewhere.
        handshake: who gives pods their nodes, and how they are agreed.
        status_every_s: how often the status of queues is looked at.
        shard: the part of the cluster whose nodes and queues these are.
        system_namespaces: where priorities of the system count, beside ``namespace``.
        moves_at_once, move_after_s, move_rest_s: see ``core.options_with_moves``.
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
    shard: Shard = ALL
    system_namespaces: tuple[str, ...] = ("kube-system",)


class PlannerService(CoreOfTerm):
    """See the module's description; also what the executor and the extender ask (``Outcomes``, ``Planning``)."""

    def __init__(self, client: KubeClient, settings: PlannerSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        neighbours = Neighbours(client, namespace=settings.namespace, now_s=time.monotonic)
        lead = Lead(_candidate(client, settings, neighbours), every_s=settings.renew_every_s, stepped=self._stepped)
        options = options_with_moves(
            at_once=settings.moves_at_once, after_s=settings.move_after_s, rest_s=settings.move_rest_s
        )
        super().__init__(
            client,
            lead,
            SteadyClock(clock or SystemClock()),  # a calendar that is set moves no deadline
            hold_s=settings.hold_s,
            refused_s=settings.refused_s,
            options=options,
            shard=settings.shard,
            system_namespaces=frozenset((*settings.system_namespaces, settings.namespace)),
        )
        self._stopping = threading.Event()
        self._away = False
        self._wait_s = DECIDE_EVERY_S  # until everything is looked at again, though nothing happens
        self.mirrors.watch_others(unbound=settings.handshake is Handshake.AFFINITY)
        self._orders = Orders(client, may_write=self._may_write, bind_s=BIND_S)
        self._queues = QueueTeller(client, self._lock, self.mirrors, every_s=settings.status_every_s)
        self._executor = Executor(self._orders, self, workers=settings.workers)
        self.extender = Extender(self, hold_s=settings.hold_s, writers=settings.workers)
        self.server = SmallServer(self.extender.handle, host=settings.host, port=settings.port, well=self.well)
        self._status: SmallServer | None = None
        if settings.status_port >= 0:
            status = PlannerStatus(self, lambda: neighbours.lives(settings.shard.lease))
            self._status = SmallServer(
                status.handle, host=settings.status_host, port=settings.status_port, bounds=STATUS_BOUNDS
            )
        self._handover = HandoverThread(
            Handover(
                client,
                settings.shard,
                self.mirrors.part,
                busy=self._is_busy,
                may_write=self.leads,
                lives=neighbours.lives,
                now_s=time.monotonic,
            )
        )
        self.mirrors.part.moved = self._handover.hurry
        self._thread = threading.Thread(target=self._decide, name="planner-decide", daemon=True)

    def start(self) -> None:
        """Begin. Raises OSError when the extender's address cannot be had."""
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
        """End in order; with ``resign`` another leads at once, when nothing is being written here any more."""
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

    def well(self) -> bool:
        """Whether kube-scheduler may be let in: a leader that has not decided for long answers nothing sensible."""
        return self._core is None or time.monotonic() - self._decided_at < STUCK_S

    def unsynced(self) -> list[str]:
        """Kinds of which no list is complete yet."""
        return self.mirrors.unsynced()

    def skipped_counts(self) -> Mapping[str, int]:
        """Versions of objects that are left out, by the plural of their kind."""
        return self.skipped.counts()

    @property
    def status_address(self) -> tuple[str, int]:
        """Return the address at which probes and metrics are answered."""
        return self._status.address if self._status is not None else ("", 0)

    def planned(self, uid: str) -> str | None:
        core = self._core
        if core is None or (not self._shard.everything and core.book.has_claims(uid)):
            return None  # of a part it is noted, under the lock, on which node claims may be allocated
        return core.answers.planned(uid)

    def filter(self, uid: str, offered: list[str], nominated: str, pod: bytes) -> FilterAnswer | None:
        with self._lock:
            if self._core is None:
                return NOBODY
            if uid not in self._core.book.entries:  # not seen yet, or no business of ours
                facts = pod_facts(self.mirrors.keep_pod(msgspec.json.decode(pod, type=Pod)), self._shard.scheduler)
                if facts is None:
                    return None
                self._core.pod(facts, self._clock.now_s())
                if facts.claims and uid not in self._core.book.entries:
                    return None  # it asks nothing of ours
            answer = self._core.answers.filter(uid, offered, nominated, self._clock.now_s())
        self._due.set()
        return None if answer.anywhere else answer

    def preempt(self, uid: str, offered: list[str]) -> list[str]:
        with self._lock:
            return self._core.answers.preempt(uid, offered) if self._core else []

    def bind(self, pod: PodName, node: str) -> BindAnswer:
        with self._lock:
            if self._core is None:
                raise CalabashError(NOBODY.text)
            if pod.uid not in self._core.book.entries:
                seen = self.seen(pod)
                if seen is not None and seen.metadata.uid == pod.uid and pod_facts(seen) is None:
                    return BindAnswer(verdict=BindVerdict.GO)
            answer = self._core.answers.bind(pod.uid, node, self._clock.now_s())
            ready = self._core.answers.let_go()
        if ready:
            self.server.call_soon(lambda: self.extender.let_go(ready))
        return answer

    def bound(self, pod: PodName, node: str, answer: BindAnswer) -> None:
        plan = answer.plan
        if plan is None:  # it asks for no devices
            self._orders.bind(pod, node)
            return
        ok, refusal = False, ""
        try:
            self._orders.bind(pod, node, plan)
            ok = True
        except CalabashError as error:
            refusal = error.message if is_final(error) else ""
            raise
        finally:
            self.figures.count(PLANNER_BINDINGS, "ok" if ok else "failed")
            with self._lock:
                if self._core is not None:
                    self._core.answers.bound(pod.uid, plan.id, ok=ok)
                    if refusal:
                        self._core.decisions.refused_binding(pod.uid, plan.id, refusal, self._clock.now_s())

    def given_up(self, uid: str) -> None:
        with self._lock:
            if self._core is not None:
                self._core.answers.given_up(uid)

    # ---- what the executor asks -----------------------------------------------------------------------------------

    def seen(self, pod: PodName) -> Pod | None:
        return self.mirrors.pod(pod.name, pod.namespace)

    def wanted(self, action: Action) -> bool:
        if isinstance(action, SweepPod):
            return self._may_write()
        with self._lock:
            entry = self._core.book.entries.get(action.pod.uid) if self._core is not None else None
            if entry is None or not self._may_write():
                return False
            return still_wanted(entry, action)

    def released(self, uid: str, plan_id: str, *, ok: bool) -> None:
        with self._lock:
            if self._core is not None:
                self._core.decisions.released(uid, plan_id, ok=ok)

    def blocked(self, uid: str, message: str) -> None:
        with self._lock:
            if self._core is not None:
                self._core.decisions.blocked(uid, message, self._clock.now_s())
        self._due.set()

    def refused(self, action: Action, message: str) -> None:
        with self._lock:
            if self._core is not None:
                self._core.decisions.refused(action, message, self._clock.now_s())
        self._due.set()

    def gone(self, pod: PodName) -> None:
        with self._lock:
            if self._core is not None:
                self._core.pod_gone(pod.uid)
        self._due.set()

    def _is_busy(self, node: str) -> bool:
        """Whether a binding to a node, or a plan for it, is being written."""
        with self._lock:
            binding = self._core is not None and self._core.book.binds_to(node)
        return binding or self._executor.writes_for(node)

    # ---- threads --------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        while not self._stopping.is_set():
            self._due.wait(self._wait_s if self._core is not None else WAIT_FOR_LEAD_S)
            self._due.clear()
            try:
                if self._keep_term():
                    self.server.call_soon(self.extender.refuse_all)
                self._once()
            except DecisionFailedError as error:
                log.exception("a decision failed")
                cause = error.__cause__
                self._recover(cause if isinstance(cause, Exception) else error)
                self.server.call_soon(self.extender.refuse_all)
            except Exception:
                log.exception("a decision could not be carried out")
                self._stopping.wait(DECIDE_EVERY_S)

    def _stepped(self, answered: bool) -> None:
        if answered and self._away:  # whatever still waits for the API server need not
            self.mirrors.hurry()
            self._executor.hurry()
        self._away = not answered
        self._due.set()

    def _once(self) -> None:
        with self._lock:
            core = self._core
            if core is None:
                return
            now_s = self._clock.now_s()
            with deciding(self.figures):
                core.decide(now_s)
            due_in_s = core.book.scheduler.due_in_s(now_s)
            self._wait_s = DECIDE_EVERY_S if due_in_s is None else min(due_in_s, DECIDE_EVERY_S)
            actions = core.take_actions()
            refused, ready = core.answers.expired(now_s), core.answers.complete()
            nodes = len(core.book.scheduler.nodes)
            self._orders.nominates = nodes >= self._settings.nominate_nodes_min
            self._orders.nominates_claims = nodes >= self._settings.nominate_claims_nodes_min
            self._decided_at = time.monotonic()
        self._executor.put(actions)
        self._tell_set_aside()
        if refused:
            self.server.call_soon(lambda: self.extender.refuse(refused))
        if ready:
            self.server.call_soon(lambda: self.extender.let_go(ready))
        if due_in_s == 0:
            self._stopping.wait(BETWEEN_CYCLES_S)
            self._due.set()

    def _tell_set_aside(self) -> None:
        """Write the conditions of pods that were set aside, for which there is no entry that the executor would ask about."""
        reports, self._set_aside = self._set_aside, []
        for report in reports:
            try:
                self._orders.report(report)
            except CalabashError as error:
                log.warning("that a pod is set aside was not told", pod=report.pod.text, error=error.message)


def _candidate(client: KubeClient, settings: PlannerSettings, neighbours: Neighbours) -> Candidate:
    shard = settings.shard
    election = Election(
        client,
        namespace=settings.namespace,
        name=shard.lease,
        identity=settings.identity or f"{shard.lease}-{secrets.token_hex(4)}",
        now_s=time.monotonic,
        term_s=settings.term_s,
    )
    apart = ApartFromOthers(election, neighbours, shard)
    lease = settings.scheduler_lease
    if not lease:
        return apart
    return BesideScheduler(apart, client, namespace=settings.namespace, lease=lease, host=socket.gethostname())
