"""Mirrors of optional kinds (gang groups, claims, device classes).

The CRD or the feature of an optional kind may not be installed. Its mirror is started once the API server serves it. If
the API server serves several versions of a kind, the newest known one is watched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from calabash.adapters.kube import Kind, KubeClient, Mirror, MirrorChange, MirrorObserver
from calabash.adapters.kube.objects.groups import COSCHEDULING_GROUP, POD_GROUP_VERSIONS, VOLCANO_GROUP
from calabash.kubernetes.planner.watch.claims import CLAIM_KINDS
from calabash.kubernetes.planner.watch.facts_from_claims import keep_claim
from calabash.kubernetes.planner.watch.pruning import keep_group
from calabash.kubernetes.pod_request import GangSource
from calabash.model.errors import CalabashError

log = structlog.get_logger(__name__)

GROUPS: tuple[tuple[GangSource, tuple[Kind[Any], ...]], ...] = (
    (GangSource.WORKLOAD, POD_GROUP_VERSIONS),
    (GangSource.COSCHEDULING, (COSCHEDULING_GROUP,)),
    (GangSource.VOLCANO, (VOLCANO_GROUP,)),
)
SERVED: tuple[tuple[str, tuple[Kind[Any], ...]], ...] = (
    *GROUPS,
    *((name, (kind,)) for name, kind in CLAIM_KINDS),
)
KEEP: Mapping[str, Callable[[Any], Any]] = {"claims": keep_claim} | {source: keep_group for source, _ in GROUPS}
ASK_EVERY_S = 60.0  # for kinds that are not installed
_ASK_AGAIN_S = 0.5


class GroupMirrors:
    """Mirrors of optional kinds; see the module's description.

    Args:
        on_change: called for every change, in the mirror's thread, with the name that the kind has in SERVED.
        observer: gets the failures of the mirrors.
    """

    def __init__(
        self,
        client: KubeClient,
        on_change: Callable[[str, MirrorChange[Any]], None],
        observer: MirrorObserver,
    ) -> None:
        self._client = client
        self._on_change = on_change
        self._observer = observer
        self._mirrors: dict[str, Mirror[Any]] = {}
        self._kinds: dict[str, Kind[Any]] = {}
        self._asked: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="planner-groups", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for mirror in self.mirrors():
            mirror.stop()

    def mirrors(self) -> list[Mirror[Any]]:
        """Return the mirrors of the kinds that are known to be installed."""
        return list(self._mirrors.values())

    def synced(self) -> bool:
        """Return True if it is known for each kind whether it is installed, and all lists are complete."""
        return len(self._asked) == len(SERVED) and all(mirror.synced() for mirror in self.mirrors())

    def snapshot(self) -> Iterator[tuple[GangSource, Kind[Any], Any]]:
        """Yield every gang group with its source and its kind."""
        for source, _ in GROUPS:
            mirror = self._mirrors.get(source)
            for group in mirror.snapshot().values() if mirror is not None else ():
                yield source, self._kinds[source], group

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while len(self._mirrors) < len(SERVED):
            answered = True
            for source, versions in SERVED:
                if source not in self._mirrors and not self._stopping.is_set():
                    answered = self._watch_if_served(source, versions) and answered
            if self._stopping.wait(ASK_EVERY_S if answered else _ASK_AGAIN_S):
                return

    def _watch_if_served(self, source: str, versions: Sequence[Kind[Any]]) -> bool:
        """Watch the first version of a kind that is installed. Returns False if the API server did not answer.

        ``source`` is the name that the kind has in SERVED.
        """
        try:
            kind = next((one for one in versions if self._client.serves(one)), None)
        except CalabashError as error:
            log.warning("cannot ask for a kind of object", kind=versions[0].plural, error=error.message)
            return False
        if kind is not None:
            on_change = partial(self._on_change, source)
            self._kinds[source] = kind
            self._mirrors[source] = mirror = Mirror(
                self._client, kind, on_change=on_change, observer=self._observer, keep=KEEP.get(source)
            )
            mirror.start()
        self._asked.add(source)
        return True
