"""The core of the current leadership term.

A core exists only while this planner leads, and is built anew for each term: in between, another planner may have
changed the plans.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import structlog

from calabash.adapters.clock import Clock
from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.core import Pod
from calabash.api.part_metrics import PLANNER_DECISIONS, PLANNER_FAILURES, PLANNER_UNLISTED, ClusterPart
from calabash.kubernetes.leader.loop import LeadershipLoop
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.objects.shards import ALL, Shard
from calabash.kubernetes.planner.decide.core import Core
from calabash.kubernetes.planner.state.component import COMPONENT
from calabash.kubernetes.planner.state.facts import Report
from calabash.kubernetes.planner.state.requests import SYSTEM_NAMESPACES
from calabash.kubernetes.planner.watch.mirrors import Mirrors
from calabash.kubernetes.skipped_objects import SkippedObjects
from calabash.kubernetes.telemetry import Telemetry
from calabash.model.errors import Reason
from calabash.model.state_machine import UnlistedTransitionError
from calabash.sched import CycleLimit, Options

log = structlog.get_logger(__name__)

_LOG_EVERY_S = 10.0
_CULPRITS_MAX = 16  # most pods that are set aside after one failure
REST_S = 5.0  # between a failed core and the next; longer than a binding takes


class DecisionFailedError(Exception):
    """Raised if the core fails while it decides; ``__cause__`` is the original exception."""


@contextmanager
def deciding(figures: Telemetry | None = None) -> Iterator[None]:
    """Convert any exception of the enclosed block to DecisionFailedError.

    If ``figures`` is given, the duration of the block is recorded there as that of one decision.
    """
    began_s = time.monotonic()
    try:
        yield
    except Exception as error:
        raise DecisionFailedError from error
    if figures is not None:
        figures.observe(PLANNER_DECISIONS, time.monotonic() - began_s)


class TermCore:
    """Creates the core of each term, and replaces one that fails; see the module's description.

    ``_lock`` guards the core; ``_due`` is set when there may be something to decide.

    Args:
        lead: thread that renews the planner's lease and counts its terms.
        hold_s: seconds for which the binding of a gang's first member is held until the last one is ready.
        refused_s: seconds for which kube-scheduler may refuse a pod before its planned devices are released.
        options: options of the scheduler.
        shard: the part of the cluster for which the planner decides.
        system_namespaces: namespaces whose pods may have a system priority.
        levels: levels of the network, as keys of node labels, outermost first.
        unbound: True to watch pods of other schedulers that may use devices also before they are bound.
    """

    def __init__(
        self,
        client: KubeClient,
        lead: LeadershipLoop,
        clock: Clock,
        *,
        hold_s: float,
        refused_s: float,
        options: Options,
        shard: Shard = ALL,
        system_namespaces: frozenset[str] = SYSTEM_NAMESPACES,
        levels: Sequence[str] = (),
        unbound: bool = False,
    ) -> None:
        self._levels = tuple(levels)
        self._clock = clock
        self._lock = threading.RLock()
        self._core: Core | None = None
        self._term = 0  # of the core
        self._hold_s = hold_s
        self._refused_s = refused_s
        self._options = options
        self._shard = shard
        self._system_namespaces = system_namespaces
        self._due = threading.Event()
        self._set_aside_reports: list[Report] = []  # to be written when a term runs
        self._not_before = 0.0
        self._decided_at = self._logged_at = time.monotonic()
        self.figures = Telemetry(ClusterPart.PLANNER)
        self.lead = lead
        self.skipped = SkippedObjects(COMPONENT, client)
        self.mirrors = Mirrors(
            client,
            self._lock,
            changed=self._due.set,
            now_s=clock.now_s,
            shard=shard,
            skipped=self.skipped,
            unbound=unbound,
        )

    def leads(self) -> bool:
        """Return True while this planner leads and has a core."""
        return self._core is not None and self._may_write()

    def pods_by_stage(self) -> Mapping[str, int]:
        """Return the number of pods of each stage; empty while this planner does not lead."""
        with self._lock:
            entries = self._core.store.entries.values() if self._core is not None else ()
            return Counter(entry.stage.value for entry in entries)

    def nodes(self) -> int:
        """Return the number of nodes on which the core places pods; 0 while this planner does not lead."""
        with self._lock:
            return len(self._core.store.scheduler.nodes) if self._core is not None else 0

    def _may_write(self) -> bool:
        """Return True while the term for which the core was built is running."""
        return self._term != 0 and self.lead.term() == self._term

    def _follow_term(self) -> bool:
        """Delete the core if its term has ended, and create one for a new term; return True if a core was deleted.

        Before a core is created, the mirrors list all pods again, because they may not have received the last writes of
        the previous leader yet.
        """
        term = self.lead.term()
        ended = self._core is not None and term != self._term
        if ended:
            self._end()
        if term and self._core is None and time.monotonic() >= self._not_before:
            self.mirrors.renew(term)
            untold = self.mirrors.incomplete_kinds()
            if not untold:
                self._begin(term)
            elif time.monotonic() - self._logged_at >= _LOG_EVERY_S:
                self._logged_at = time.monotonic()
                log.info("waits for complete lists before leading", missing=untold)
        return ended

    def _begin(self, term: int) -> None:
        self.mirrors.begin_term()
        with self._lock:
            core = self._new_core(limit=CycleLimit(clock=time.thread_time))
            self.mirrors.emit_all(core)
            with deciding():
                core.start(self._clock.now_s())
            self.mirrors.attach(core)
            self._core = core
            self._decided_at = time.monotonic()
            self._term = term
            nodes = len(core.store.scheduler.nodes)
        log.info("leads", nodes=nodes, pods=len(core.store.entries))

    def _recover(self, error: Exception) -> None:
        """Delete the core after a failed decision, and set aside the pods that cause the failure.

        A new core is built from the API server after REST_S seconds. By then the writes of the old core have ended. The
        new core may succeed, because the state of the old one may have been wrong. If a new core fails as well, the
        unbound pods that cause this are found by bisection. This takes about 17 trial cores for each of them among
        100,000 pods.
        """
        self.figures.count(PLANNER_FAILURES)
        with self._lock:
            for pod in self._culprits():
                self.mirrors.set_aside(pod, error)
                name = PodName(uid=pod.metadata.uid, namespace=pod.metadata.namespace, name=pod.metadata.name)
                text = (
                    "the planner fails to decide about this pod; hint: tried again when its spec or annotations change"
                )
                self._set_aside_reports.append(Report(pod=name, reason=Reason.UNSUPPORTED, message=text))
            self._end()
            self.mirrors.require_relist()
            self._not_before = time.monotonic() + REST_S

    def _culprits(self) -> list[Pod]:
        """Return the unbound pods that must be left out so that decisions succeed; at most _CULPRITS_MAX."""
        aside, found = set(self.mirrors.set_aside_pods), list[Pod]()
        pods = [pod for pod in self.mirrors.unbound_pods() if pod.metadata.uid not in aside]
        while len(found) < _CULPRITS_MAX and self._fails(aside):
            if self._fails({*aside, *(pod.metadata.uid for pod in pods)}):
                log.error("decisions fail whichever pod is left out")
                break
            low, high = 0, len(pods)  # fails without the first ``low`` pods, succeeds without the first ``high``
            while high - low > 1:
                middle = (low + high) // 2
                fails = self._fails({*aside, *(pod.metadata.uid for pod in pods[:middle])})
                low, high = (middle, high) if fails else (low, middle)
            found.append(pods.pop(low))
            aside.add(found[-1].metadata.uid)
        return found

    def _fails(self, aside: set[str]) -> bool:
        """Return True if a new core without these pods fails to decide."""
        core = self._new_core(limit=None)  # one complete cycle
        self.mirrors.emit_all(core, aside)
        try:
            core.start(self._clock.now_s())
            core.decide(self._clock.now_s())
        except Exception:
            return True
        return False

    def _new_core(self, *, limit: CycleLimit | None) -> Core:
        return Core(
            new_id=lambda: secrets.token_hex(8),
            hold_s=self._hold_s,
            refused_s=self._refused_s,
            options=self._options,
            shard=self._shard,
            system_namespaces=self._system_namespaces,
            limit=limit,
            levels=self._levels,
            on_unlisted=self._count_unlisted,
        )

    def _count_unlisted(self, error: UnlistedTransitionError) -> None:
        """Log and count an event that the table of stages lacks. The core continues, as only one pod is affected."""
        self.figures.count(PLANNER_UNLISTED)
        log.error("unlisted transition", pod=error.subject, stage=error.stage, pod_event=error.event)

    def _end(self) -> None:
        with self._lock:
            self.mirrors.end_term()
            self._core = None
            self._term = 0
        log.warning("leads no longer", holder=self.lead.holder())
