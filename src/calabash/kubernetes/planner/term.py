"""The core of the term that runs: none while another planner leads, and never one from a term that has ended."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import structlog

from calabash.adapters.clock import Clock
from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.core import Pod
from calabash.api.part_metrics import PLANNER_DECISIONS, PLANNER_FAILURES, ClusterPart
from calabash.kubernetes.leader.loop import Lead
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
from calabash.sched import CycleLimit, Options

log = structlog.get_logger(__name__)

_SAY_EVERY_S = 10.0
_CULPRITS_MAX = 16  # pods that are set aside after one failure
REST_S = 5.0  # between the end of a core that failed and the next: longer than a binding takes


class DecisionFailedError(Exception):
    """The core failed, with the error of which this is raised."""


@contextmanager
def deciding(figures: Telemetry | None = None) -> Iterator[None]:
    """Begin a block in which the core decides. With ``figures`` it is a cycle, whose time is measured."""
    began_s = time.monotonic()
    try:
        yield
    except Exception as error:
        raise DecisionFailedError from error
    if figures is not None:
        figures.observe(PLANNER_DECISIONS, time.monotonic() - began_s)


class CoreOfTerm:
    """See the module's description. ``_lock`` guards the core, ``_due`` says that there may be something to decide.

    Args:
        lead: whether, and in which term, this planner leads.
        hold_s: how long the binding of a gang's first member waits for the last.
        refused_s: how long kube-scheduler may refuse a pod that holds planned devices.
        options: how it decides.
        shard: the part of the cluster that it plans.
        system_namespaces: where the priorities of the system count.
    """

    def __init__(
        self,
        client: KubeClient,
        lead: Lead,
        clock: Clock,
        *,
        hold_s: float,
        refused_s: float,
        options: Options,
        shard: Shard = ALL,
        system_namespaces: frozenset[str] = SYSTEM_NAMESPACES,
    ) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._core: Core | None = None
        self._term = 0  # that the core belongs to
        self._hold_s = hold_s
        self._refused_s = refused_s
        self._options = options
        self._shard = shard
        self._system_namespaces = system_namespaces
        self._due = threading.Event()
        self._set_aside: list[Report] = []  # to be written when a term runs
        self._not_before = 0.0
        self._decided_at = self._waited_at = time.monotonic()
        self.figures = Telemetry(ClusterPart.PLANNER)
        self.lead = lead
        self.skipped = SkippedObjects(COMPONENT, client)
        self.mirrors = Mirrors(
            client, self._lock, changed=self._due.set, now_s=clock.now_s, shard=shard, skipped=self.skipped
        )

    def leads(self) -> bool:
        return self._core is not None and self._may_write()

    def pods_by_stage(self) -> Mapping[str, int]:
        """Pods that the core knows, by their stage; none while this planner does not lead."""
        with self._lock:
            entries = self._core.book.entries.values() if self._core is not None else ()
            return Counter(entry.stage.value for entry in entries)

    def nodes(self) -> int:
        """Nodes on which the core places pods."""
        with self._lock:
            return len(self._core.book.scheduler.nodes) if self._core is not None else 0

    def _may_write(self) -> bool:
        """Whether the term in which the core was built runs on."""
        return self._term != 0 and self.lead.term() == self._term

    def _keep_term(self) -> bool:
        """Have a core for the term that runs; whether there was one of a term that has ended. The mirrors may know less than
        another planner has written: they list anew first."""
        term = self.lead.term()
        ended = self._core is not None and term != self._term
        if ended:
            self._end()
        if term and self._core is None and time.monotonic() >= self._not_before:
            self.mirrors.renew(term)
            untold = self.mirrors.untold()
            if not untold:
                self._begin(term)
            elif time.monotonic() - self._waited_at >= _SAY_EVERY_S:
                self._waited_at = time.monotonic()
                log.info("leads as soon as it knows all", unknown=untold)
        return ended

    def _begin(self, term: int) -> None:
        self.mirrors.telling = True
        with self._lock:
            core = self._new_core(limit=CycleLimit(clock=time.thread_time))
            self.mirrors.tell_all(core)
            with deciding():
                core.start(self._clock.now_s())
            self._core = self.mirrors.core = core
            self._decided_at = time.monotonic()
            self._term = term
            nodes = len(core.book.scheduler.nodes)
        log.info("leads", nodes=nodes, pods=len(core.book.entries))

    def _recover(self, error: Exception) -> None:
        """Begin anew after a decision failed, without the pods on which it fails.

        Everything that is planned is known from the API server, so a new core may succeed where the old one failed. Where it
        fails as well, the pods without a node are searched for those without which it succeeds, by halves: 17 new cores for
        100,000 pods. What is being written for the old core ends before the new one reads the pods.
        """
        self.figures.count(PLANNER_FAILURES)
        with self._lock:
            for pod in self._culprits():
                self.mirrors.set_aside(pod, error)
                name = PodName(uid=pod.metadata.uid, namespace=pod.metadata.namespace, name=pod.metadata.name)
                text = "the planner cannot decide about this pod; hint: it is tried again when what it asks for changes"
                self._set_aside.append(Report(pod=name, reason=Reason.UNSUPPORTED, message=text))
            self._end()
            self.mirrors.begin_anew()
            self._not_before = time.monotonic() + REST_S

    def _culprits(self) -> list[Pod]:
        """Return the fewest pods without a node, as far as they are at fault one by one, without which decisions succeed."""
        aside, found = set(self.mirrors.aside), list[Pod]()
        pods = [pod for pod in self.mirrors.unbound() if pod.metadata.uid not in aside]
        while len(found) < _CULPRITS_MAX and self._fails(aside):
            if self._fails({*aside, *(pod.metadata.uid for pod in pods)}):
                log.error("decisions fail whatever pod is left out")
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
        """Return True if a new core that is not told of these pods fails to decide."""
        core = self._new_core(limit=None)  # one cycle that comes to everything
        self.mirrors.tell_all(core, aside)
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
        )

    def _end(self) -> None:
        with self._lock:
            self._core = self.mirrors.core = None
            self.mirrors.telling = False
            self._term = 0
        log.warning("leads no longer", holder=self.lead.holder())
