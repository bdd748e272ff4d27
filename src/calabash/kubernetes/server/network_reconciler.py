"""Copy network objects of the Kubernetes API server to the server's network store, and report their conditions.

Theory of operation. An object is valid only together with all other networks, and only the server knows all of them.
The API server therefore accepts any object, and this module reports errors in the object's condition ``Valid``. A
finalizer keeps a deleted object until the store has removed its copy. While another object of the store needs the copy,
the deleted object stays and its condition names the reason. Networks that users created in the store through the HTTP
API, and that have no object in the API server, are not changed. In each round all objects are applied repeatedly, in
any order, until no further object can be applied, because an object may need another that is applied after it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from calabash.adapters.kube import KubeClient, KubeError
from calabash.adapters.kube.mirror.mirror import Mirror
from calabash.adapters.kube.objects.network_resources import NETWORK_KINDS, KubeNetworkObject, network_name
from calabash.adapters.store.networks import StoredNetworkObject
from calabash.kubernetes.objects.names import NETWORK_FINALIZER
from calabash.kubernetes.skipped_objects import SkippedObjects
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import NetworkKind
from calabash.model.tenancy import Member, Principal, Role
from calabash.net.objects.specs import decode
from calabash.platform.networks.store import NetworkStore

COMPONENT = "calabash-server"
POLL_S = 3.0  # greatest age of the network controller's conditions
VALID = "Valid"
PASSES_MAX = 16
PLATFORM = Principal(user=COMPONENT, uid=0, roles=(Member(user=COMPONENT, role=Role.ADMIN),))

log = structlog.get_logger(__name__)

Key = tuple[NetworkKind, str]


@dataclass(frozen=True, slots=True)
class _Known:
    """Generations of an object when it was last applied. The object is not applied again while both are unchanged.

    Args:
        uid: UID of the object in the API server.
        generation: generation of the object in the API server.
        kept: generation of the object's copy in the store.
    """

    uid: str
    generation: int
    kept: int


class KubeNetworkKeeper:
    """Thread that reconciles network objects after each change of one, and every ``POLL_S`` seconds.

    If the API server has no network resources, ``start`` logs that and no thread runs.
    """

    def __init__(self, client: KubeClient, store: NetworkStore) -> None:
        self._client, self._store = client, store
        self._due, self._stopping = threading.Event(), threading.Event()
        self._known: dict[Key, _Known] = {}
        self._held: set[str] = set()  # UIDs of objects with the finalizer, also before the mirrors show it
        skipped = SkippedObjects(COMPONENT)
        self._mirrors: dict[NetworkKind, Mirror[KubeNetworkObject]] = {
            kind: Mirror(client, resource, on_change=lambda _: self._due.set(), observer=skipped)
            for kind, resource in NETWORK_KINDS.items()
            if client.serves(resource)
        }
        self._thread = threading.Thread(target=self._run, name="networks", daemon=True)

    def start(self) -> None:
        for mirror in self._mirrors.values():
            mirror.start()
        if self._mirrors:
            self._thread.start()
        else:
            log.info("the API server has no network resources; install the CRDs of the chart")

    def stop(self) -> None:
        self._stopping.set()
        self._due.set()
        if self._thread.is_alive():
            self._thread.join()
        for mirror in self._mirrors.values():
            mirror.stop()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._due.clear()
            try:
                if all(mirror.synced(POLL_S) for mirror in self._mirrors.values()):
                    self.reconcile()
            except CalabashError as error:
                log.warning("cannot reconcile networks", error=error.message)
            except Exception:
                log.exception("cannot reconcile networks")
            self._due.wait(POLL_S)

    def reconcile(self) -> None:
        """Apply all objects to the store and write their status.

        Raises:
            CalabashError: a status could not be written; the next call continues where this one failed.
        """
        found = dict(self._objects())
        faults: dict[Key, CalabashError] = {}
        for _ in range(PASSES_MAX):
            before, faults = len(faults), {}
            moved = False
            for key, item in found.items():
                try:
                    moved = (self._remove(key, item) if _leaves(item) else self._put(key, item)) or moved
                except KubeError as error:
                    log.info("cannot write a network object", name=key[1], error=error.message)
                except CalabashError as error:
                    faults[key] = error
            if not faults or (not moved and len(faults) == before):
                break
        self._held &= {item.metadata.uid for item in found.values()}
        self._known = {key: known for key, known in self._known.items() if key in found}
        for key, item in found.items():
            self._write_status(key, item, faults.get(key))

    def _objects(self) -> Iterator[tuple[Key, KubeNetworkObject]]:
        for kind, mirror in self._mirrors.items():
            for _, item in sorted(mirror.snapshot().items()):
                yield (kind, network_name(item.metadata.name)), item

    def _kept(self, key: Key) -> StoredNetworkObject | None:
        return self._store.state().kept.get((str(key[0]), key[1]))

    def _put(self, key: Key, item: KubeNetworkObject) -> bool:
        """Apply an object to the store; return True if the store changed.

        Raises:
            CalabashError: the object is invalid, or needs an object that the store does not have yet.
        """
        kept, known = self._kept(key), self._known.get(key)
        now = _Known(item.metadata.uid, item.metadata.generation, kept.generation if kept else 0)
        if kept is not None and known == now:
            return False
        wanted = decode(key[0], key[1], item.spec)
        self._hold(key[0], item)
        made = self._store.put(PLATFORM, wanted)
        self._known[key] = _Known(now.uid, now.generation, made.generation)
        return made.generation != now.kept

    def _remove(self, key: Key, item: KubeNetworkObject) -> bool:
        """Remove a deleted object from the store and remove its finalizer; return True if the store had the object.

        Raises:
            CalabashError: another object of the store needs it.
        """
        if NETWORK_FINALIZER not in item.metadata.finalizers:
            return False
        there = self._kept(key) is not None
        if (there and key in self._known) or (there and _was_valid(item)):
            self._store.remove(PLATFORM, *key)
        left = [name for name in item.metadata.finalizers if name != NETWORK_FINALIZER]
        meta = {"finalizers": left, "resourceVersion": item.metadata.resource_version}
        self._client.patch(NETWORK_KINDS[key[0]], item.metadata.name, body={"metadata": meta})
        self._known.pop(key, None)
        return there

    def _hold(self, kind: NetworkKind, item: KubeNetworkObject) -> None:
        """Set the finalizer on an object.

        This is done before the object is copied to the store. The object can then not disappear from the API server
        unnoticed while the store has a copy.
        """
        if NETWORK_FINALIZER not in item.metadata.finalizers and item.metadata.uid not in self._held:
            meta = {
                "finalizers": [*item.metadata.finalizers, NETWORK_FINALIZER],
                "resourceVersion": item.metadata.resource_version,
            }
            self._client.patch(NETWORK_KINDS[kind], item.metadata.name, body={"metadata": meta})
            self._held.add(item.metadata.uid)

    def _write_status(self, key: Key, item: KubeNetworkObject, fault: CalabashError | None) -> None:
        if _leaves(item) and fault is None:
            return
        status = _status(item, self._kept(key), fault)
        if _same(item, status):
            return
        try:
            self._client.patch(
                NETWORK_KINDS[key[0]],
                item.metadata.name,
                body={"status": status},
                style="apply",
                subresource="status",
                field_manager=COMPONENT,
                force=True,
            )
        except KubeError as error:
            if error.reason is not Reason.NOT_FOUND:  # the object was deleted meanwhile
                raise


def _leaves(item: KubeNetworkObject) -> bool:
    return item.metadata.deletion_timestamp is not None


def _was_valid(item: KubeNetworkObject) -> bool:
    return bool(item.status.completed)


def _status(item: KubeNetworkObject, kept: StoredNetworkObject | None, fault: CalabashError | None) -> dict[str, Any]:
    told = {
        VALID: ("False" if fault else "True", str(fault.reason) if fault else "stands", fault.message if fault else "")
    }
    for one in kept.status.get("conditions", ()) if kept is not None else ():
        holds = {True: "True", False: "False"}.get(one.get("holds"), "Unknown")
        told.setdefault(str(one["kind"]).capitalize(), (holds, str(one.get("reason", "")), str(one.get("message", ""))))
    before = {condition.type: condition for condition in item.status.conditions}
    generation = item.metadata.generation
    conditions = []
    for name, (status, reason, message) in told.items():
        known = before.get(name)
        since = known.last_transition_time if known is not None and known.status == status else None
        conditions.append(
            {
                "type": name,
                "status": status,
                "reason": reason[:64],
                "message": message[:1024],
                "lastTransitionTime": since or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "observedGeneration": generation,
            }
        )
    completed: Mapping[str, Any] = kept.spec if kept is not None else item.status.completed
    return {"observedGeneration": generation, "completed": dict(completed), "conditions": conditions}


def _same(item: KubeNetworkObject, status: Mapping[str, Any]) -> bool:
    told = item.status
    if (told.observed_generation, told.completed) != (status["observedGeneration"], status["completed"]):
        return False
    wanted = {(c["type"], c["status"], c["reason"], c["message"]) for c in status["conditions"]}
    return {(c.type, c.status, c.reason, c.message) for c in told.conditions} == wanted
