"""Owners of pods: follow the controllers of a pod in the API server, and find the gangs of the last gang owner.

Controllers often create many pods of one object at once. The answer for the pod's own controller is therefore kept for
CACHE_S seconds, and reviews that need the same answer share one lookup. An answer that is older is used, up to STALE_S
seconds, only if the API server does not answer. The cache belongs to the event loop of the admission server, so it has
no lock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from calabash.adapters.kube import Kind, KubeClient, KubeStruct, ObjectMeta
from calabash.kubernetes.admission.claim_pods import asked_by_name, look_up
from calabash.kubernetes.admission.scope import NO_OWNER, OwnerAnswer, OwnerResult
from calabash.kubernetes.dialects.pod import AskingOwner, pod_of
from calabash.kubernetes.gangs.amounts import amounts_of
from calabash.kubernetes.gangs.fields import field
from calabash.kubernetes.gangs.membership import LEVELS_MAX
from calabash.kubernetes.gangs.owned import owned_gangs
from calabash.kubernetes.gangs.owner import GangOwner
from calabash.kubernetes.gangs.table import ReadKind, read_kinds
from calabash.model.errors import CalabashError, Reason

CACHE_S, STALE_S = 10.0, 600.0
ENTRIES_MAX = 1024
LOOKUPS_MAX = 4  # at the same time
WAITING_MAX = 256  # lookups that run or wait

_UNANSWERED = OwnerAnswer(result=OwnerResult.UNANSWERED)


class OwnerObject(KubeStruct, frozen=True):
    """Controller of a pod, of which any field of the specification may be read."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Any = None
    status: Any = None


class OwnerReader:
    """Reader of the controllers of pods.

    Args:
        client: client of the API server.
        table: the table of gang owners.
        extended: values of ``extendedResourceName`` of Calabash's device classes.
        levels: levels of the cluster's topology; see ``gangs.near``.
    """

    def __init__(
        self,
        client: KubeClient,
        table: Mapping[str, GangOwner],
        extended: tuple[str, ...] = (),
        levels: tuple[str, ...] = (),
    ) -> None:
        self._client = client
        self._table = table
        self._kinds = read_kinds(table)
        self._extended = extended
        self._levels = levels

    def read(self, namespace: str, owner: AskingOwner, timeout_s: float) -> OwnerAnswer:
        """Return the answer for the pods of a controller. May block for ``timeout_s`` seconds for each level.

        Raises:
            CalabashError: API_DOWN if the API server does not answer.
        """
        deadline_s = time.monotonic() + timeout_s
        manifests: list[dict[str, Any]] = []
        found: AskingOwner | None = owner
        while found is not None and len(manifests) < LEVELS_MAX:
            kind = self._kinds.get(_key(found))
            if kind is None:
                break
            left_s, typed = max(0.1, deadline_s - time.monotonic()), _typed(kind, found)
            try:
                read = self._client.within(left_s).get(typed, found.name, namespace)
            except (ValueError, RecursionError):  # no object has such a name, or it is nested too deeply
                break
            except CalabashError as error:
                if error.reason is Reason.NOT_PERMITTED:
                    return _forbidden(found)
                if error.reason is Reason.API_DOWN:
                    raise
                break
            if read is None or read.metadata.uid != found.uid:
                break
            tree = msgspec.to_builtins(read)
            manifests.append({"apiVersion": typed.api_version, "kind": kind.kind, **tree})
            parent = read.metadata.controller
            found = msgspec.convert(msgspec.to_builtins(parent), AskingOwner) if parent is not None else None
        return self._answer(namespace, manifests)

    def _answer(self, namespace: str, manifests: list[dict[str, Any]]) -> OwnerAnswer:
        try:
            gangs = owned_gangs(self._table, manifests, lambda template: self._asks(namespace, template), self._levels)
        except CalabashError as error:
            if error.reason is Reason.API_DOWN:
                raise
            return OwnerAnswer(
                result=OwnerResult.INVALID, warning=f"the pod starts without its gang: {error.message}; {error.hint}"
            )
        return OwnerAnswer(result=OwnerResult.GANG, gangs=gangs) if gangs is not None else NO_OWNER

    def _asks(self, namespace: str, template: Any) -> bool:
        """Return True if a pod template requests devices, by resource names or by claims."""
        try:
            if amounts_of(template).devices:
                return True
            pod = pod_of({"spec": field(template, "spec") or {}})
            by_name, claims = asked_by_name(pod, self._extended), pod.spec.resource_claims or []
        except CalabashError:
            return False
        if by_name:
            return True
        if not claims:
            return False
        asked = look_up(self._client, namespace, claims, {})
        return any(asked.get(claim.name, claim) is not None for claim in claims)


def is_read(kinds: Mapping[str, ReadKind], owner: AskingOwner) -> bool:
    """Return True if a controller is of a kind that may lead to a gang owner."""
    return bool(owner.uid) and _key(owner) in kinds


def _key(owner: AskingOwner) -> str:
    return f"{owner.api_version.rpartition('/')[0]}/{owner.kind}"


def _typed(kind: ReadKind, owner: AskingOwner) -> Kind[OwnerObject]:
    """Return the kind in the version of the reference, if its fields are known, else in the preferred version."""
    stated = owner.api_version.rpartition("/")[2]
    version = stated if stated in kind.versions else kind.versions[0]
    api = f"{kind.group}/{version}" if kind.group else version
    return Kind(api_version=api, name=kind.kind, plural=kind.plural, namespaced=True, type=OwnerObject)


def _forbidden(owner: AskingOwner) -> OwnerAnswer:
    return OwnerAnswer(
        result=OwnerResult.FORBIDDEN,
        warning=f"{owner.kind[:63]} {owner.name[:100]} cannot be read, so the pod does not wait for a gang; hint: an"
        " administrator permits the service account of admission to get it",
    )


class OwnerCache:
    """Answers for controllers of pods; see the module's description. Belongs to one event loop.

    Args:
        read: reads an answer, given the namespace and the controller; may block.
        wait_s: longest time for which a review waits.
        clock_s: clock in seconds.
    """

    def __init__(
        self,
        read: Callable[[str, AskingOwner], OwnerAnswer],
        wait_s: float,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._wait_s = wait_s
        self._clock_s = clock_s
        self._kept: dict[tuple[str, str], tuple[float, OwnerAnswer]] = {}
        self._running: dict[tuple[str, str], asyncio.Task[OwnerAnswer]] = {}
        self._slots = asyncio.Semaphore(LOOKUPS_MAX)

    async def answer(self, namespace: str, owner: AskingOwner) -> OwnerAnswer:
        """Return the answer for the pods of a controller, within ``wait_s`` seconds."""
        key = (namespace, owner.uid)
        kept = self._kept.get(key)
        age_s = self._clock_s() - kept[0] if kept is not None else STALE_S
        if kept is not None and age_s < CACHE_S:
            return kept[1]
        stale = kept[1] if kept is not None and age_s < STALE_S else _UNANSWERED
        running = self._running.get(key)
        if running is None:
            if len(self._running) >= WAITING_MAX:
                return stale
            running = self._running[key] = asyncio.create_task(self._read_once(key, owner))
            running.add_done_callback(_retrieve)
        try:
            return await asyncio.wait_for(asyncio.shield(running), self._wait_s)
        except (CalabashError, TimeoutError):
            return stale

    async def _read_once(self, key: tuple[str, str], owner: AskingOwner) -> OwnerAnswer:
        try:
            async with self._slots:
                answer = await asyncio.to_thread(self._read, key[0], owner)
            self._kept.pop(key, None)
            self._kept[key] = (self._clock_s(), answer)
            while len(self._kept) > ENTRIES_MAX:
                del self._kept[next(iter(self._kept))]
            return answer
        finally:
            del self._running[key]


def _retrieve(task: asyncio.Task[OwnerAnswer]) -> None:
    """Mark the error of a lookup as handled: reviews that waited for the lookup may have ended before it."""
    if not task.cancelled():
        task.exception()
