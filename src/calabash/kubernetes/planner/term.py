"""The core of the term that runs: none while another planner leads, and never one from a term that has ended."""

from __future__ import annotations

import secrets
import threading
import time

import structlog

from calabash.kubernetes.planner.core import Core
from calabash.kubernetes.planner.lead import Lead
from calabash.kubernetes.planner.mirrors import Mirrors
from calabash.kubernetes.planner.wishes import SYSTEM_NAMESPACES
from calabash.kubernetes.shards import ALL, Shard
from calabash.sched import Options
from calabash.seams.clock import Clock
from calabash.seams.kube import KubeClient

log = structlog.get_logger(__name__)

_SAY_EVERY_S = 10.0


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
        self._decided_at = self._waited_at = time.monotonic()
        self.lead = lead
        self.mirrors = Mirrors(client, self._lock, changed=self._due.set, now_s=clock.now_s, shard=shard)

    def leads(self) -> bool:
        return self._core is not None and self._may_write()

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
        if term and self._core is None:
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
            core = Core(
                new_id=lambda: secrets.token_hex(8),
                hold_s=self._hold_s,
                refused_s=self._refused_s,
                options=self._options,
                shard=self._shard,
                system_namespaces=self._system_namespaces,
            )
            self.mirrors.tell_all(core)
            core.start(self._clock.now_s())
            self._core = self.mirrors.core = core
            self._decided_at = time.monotonic()
            self._term = term
            nodes = len(core.book.scheduler.nodes)
        log.info("leads", nodes=nodes, pods=len(core.book.entries))

    def _end(self) -> None:
        with self._lock:
            self._core = self.mirrors.core = None
            self.mirrors.telling = False
            self._term = 0
        log.warning("leads no longer", holder=self.lead.holder())
