"""Publisher of a node's ResourceSlices. They are written only if those in the API server differ from the wanted ones.

Theory of operation. The slices of a node form a pool, and each has the number of the pool's generation. A scheduler
ignores the pool while some slices have an older generation than others. If several slices change, all are written with
a new generation, so that no scheduler uses a partial change. If only one slice changes, for example when the health of
a device does, it is written alone in the current generation. A watch reports when the kubelet or another client has
deleted or changed slices. After a write, the copies of the watch are outdated; they are used again when a newer list
has been read.

An API server silently drops fields that belong to features that it does not have. The response to each write is
therefore compared with what was written, and features whose fields were dropped are no longer used. Without shared
counters, for example, a card could be allocated in two modes at once, so the node then offers whole cards only. The
features are detected again after the slices were deleted, which happens when the API server is upgraded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import structlog

from calabash.adapters.kube import KubeClient, KubeError, Mirror
from calabash.adapters.kube.objects.claims import RESOURCE_SLICE, ResourceSlice, ResourceSliceSpec
from calabash.adapters.kube.objects.core import NODE
from calabash.kubernetes.claims.device_names import DRIVER
from calabash.kubernetes.claims.slices import ServerFeatures, SliceFacts, slice_name, slices_of
from calabash.kubernetes.skipped_objects import SkippedObjects
from calabash.model.errors import CalabashError, Reason
from calabash.node.snapshot import DeviceSnapshot, NodeSnapshot

_ATTEMPTS = 5  # to find out which fields the API server stores

log = structlog.get_logger(__name__)


class SlicePublisher:
    """Publisher of the slices of one node. Methods must be called from a single thread; ``stop`` ends its watch."""

    def __init__(self, client: KubeClient, node: str) -> None:
        self._client = client
        self._node = node
        skipped = SkippedObjects("calabash-agent")
        self._mirror = Mirror(client, RESOURCE_SLICE, observer=skipped, field_selector=f"spec.nodeName={node}")
        self._started = False
        self._features = ServerFeatures()
        self._told: tuple[tuple[DeviceSnapshot, ...], SliceFacts, ServerFeatures] | None = None
        self._drawn: tuple[ResourceSliceSpec, ...] = ()
        self._generation = 0
        self._node_is: list[dict[str, Any]] = []
        self._wanted: tuple[ResourceSliceSpec, ...] | None = None
        self._kept: dict[str, ResourceSliceSpec] = {}  # as returned by the API server

    @property
    def degraded(self) -> str:
        """Text about devices that are not offered because the API server cannot store them; "" if all are offered."""
        features = self._features
        if not features.counters:
            return "whole cards only: the API server keeps no shared counters (feature DRAPartitionableDevices)"
        missing = [] if features.shares else ["no shared devices (feature DRAConsumableCapacity)"]
        missing += [] if features.taints else ["cards that are unwell are left out (no feature DRADeviceTaints)"]
        return "; ".join(missing)

    def publish(self, snapshot: NodeSnapshot, facts: SliceFacts) -> bool:
        """Write the slices if those in the API server differ from the wanted ones.

        Args:
            snapshot: the devices and allocations of the node.
            facts: facts about the node that are not in the snapshot.

        Returns:
            True if slices were written; False if they are up to date or the watch has not read them yet.

        Raises:
            KubeError: the API server refuses a write or does not answer.
        """
        if not self._is_synced():
            return False
        have = self._have()
        if not have and self._kept and self._mirror.renewed():
            self._features = ServerFeatures()
        wanted = self._of(snapshot, facts)
        if wanted == self._wanted and (not self._mirror.renewed() or self._is_kept(have)):
            return False
        only = self._only_change(wanted, have)
        for _ in range(_ATTEMPTS):
            learned = self._write_one(only, wanted[only]) if only is not None else self._write(wanted, have)
            if learned == self._features:
                self._wanted = wanted
                return True
            self._features = learned
            log.warning(
                "the API server does not store all fields of the slices",
                offered=self.degraded or "counters beside devices",
            )
            wanted, only = self._of(snapshot, facts), None
        raise CalabashError(
            "the API server returns other slices of this node than were written", reason=Reason.API_DOWN
        )

    def withdraw(self) -> None:
        """Delete all slices of the node, so that no further claim is allocated its devices. Raises KubeError."""
        listed = self._client.list(RESOURCE_SLICE, field_selector=f"spec.nodeName={self._node}")
        for one in listed.items:
            if one.spec.driver == DRIVER:
                self._client.delete(RESOURCE_SLICE, one.metadata.name)
        self._wanted, self._kept = None, {}

    def stop(self) -> None:
        """Stop the watch. The slices are kept, because the next agent of the node may start within a moment."""
        if self._started:
            self._mirror.stop()

    def _of(self, snapshot: NodeSnapshot, facts: SliceFacts) -> tuple[ResourceSliceSpec, ...]:
        """Return the ResourceSlices that the API server should have.

        They are built again only if the devices or facts have changed, because building them takes milliseconds.
        """
        states = tuple(replace(state, reading=None, cause="") for state in snapshot.devices)
        told = (states, facts, self._features)
        if told != self._told:
            self._told, self._drawn = told, slices_of(snapshot, facts, self._features)
        return self._drawn

    def _is_synced(self) -> bool:
        if not self._started:
            self._started = True
            self._mirror.start()
        return self._mirror.synced()

    def _have(self) -> dict[str, ResourceSlice]:
        return {name: one for (_, name), one in self._mirror.snapshot().items() if one.spec.driver == DRIVER}

    def _is_kept(self, have: Mapping[str, ResourceSlice]) -> bool:
        return {name: _bare(one.spec) for name, one in have.items()} == self._kept and all(
            one.spec.pool.generation == self._generation for one in have.values()
        )

    def _only_change(self, wanted: Sequence[ResourceSliceSpec], have: Mapping[str, ResourceSlice]) -> int | None:
        """Return the index of the slice that must be written, if no other slice must be; None otherwise.

        Args:
            wanted: the specs that the API server should have.
            have: the slices that the API server has, by name.
        """
        if (
            self._wanted is None
            or len(wanted) != len(self._wanted)
            or (self._mirror.renewed() and not self._is_kept(have))
        ):
            return None
        changed = [n for n, (old, new) in enumerate(zip(self._wanted, wanted, strict=True)) if old != new]
        return changed[0] if len(changed) == 1 else None

    def _write_one(self, number: int, bare: ResourceSliceSpec) -> ServerFeatures:
        """Write one slice in the current generation; return the features that the API server turned out to have."""
        name, spec = slice_name(self._node, number), _in_generation(bare, self._generation)
        self._wanted = None
        try:
            written = self._put(name, spec, self._node_is or self._owner())
        finally:
            self._mirror.renew()
        self._kept[name] = _bare(written.spec)
        return _learned(self._features, spec, written.spec)

    def _write(self, wanted: Sequence[ResourceSliceSpec], have: Mapping[str, ResourceSlice]) -> ServerFeatures:
        """Write a new generation of all slices; return the features that the API server turned out to have."""
        before = max((one.spec.pool.generation for one in have.values()), default=0)
        self._generation = max(before, self._generation) + 1
        owner = self._owner()
        self._wanted, kept = None, {}
        try:
            for number, bare in enumerate(wanted):
                name, spec = slice_name(self._node, number), _in_generation(bare, self._generation)
                written = self._put(name, spec, owner)
                learned = _learned(self._features, spec, written.spec)
                if learned != self._features:
                    return learned
                kept[name] = _bare(written.spec)
        except KubeError as error:
            if error.reason is not Reason.BAD_REQUEST or not self._features.counters:
                raise
            log.warning("the API server refused the slices", error=error.message)
            return replace(self._features, **({"apart": False} if self._features.apart else {"counters": False}))
        finally:
            self._mirror.renew()
        for name in {*have, *self._kept} - set(kept):
            self._client.delete(RESOURCE_SLICE, name)
        self._mirror.renew()
        self._kept = kept
        return self._features

    def _put(self, name: str, spec: ResourceSliceSpec, owner: Sequence[Mapping[str, Any]]) -> ResourceSlice:
        written = msgspec.to_builtins(spec)
        whole = {"devices": None, "sharedCounters": None} | written
        meta = {"ownerReferences": list(owner)}
        try:
            return self._client.patch(RESOURCE_SLICE, name, body={"metadata": meta, "spec": whole})
        except KubeError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
        return self._client.create(RESOURCE_SLICE, {"metadata": {"name": name, **meta}, "spec": written})

    def _owner(self) -> list[dict[str, Any]]:
        """Return the owner reference to the Node object, so that the slices are deleted when the Node object is."""
        node = self._client.get(NODE, self._node)
        if node is None:
            raise CalabashError(f"node {self._node} is not in the API server", reason=Reason.NOT_FOUND)
        uid = node.metadata.uid
        self._node_is = [{"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid, "controller": True}]
        return self._node_is


def _in_generation(spec: ResourceSliceSpec, generation: int) -> ResourceSliceSpec:
    """Return the spec with another generation of its pool."""
    return msgspec.structs.replace(spec, pool=msgspec.structs.replace(spec.pool, generation=generation))


def _bare(spec: ResourceSliceSpec) -> ResourceSliceSpec:
    """Return the spec without its generation and times, so that two specs can be compared."""
    devices = tuple(
        msgspec.structs.replace(
            device, taints=tuple(msgspec.structs.replace(taint, time_added=None) for taint in device.taints)
        )
        for device in spec.devices
    )
    return _in_generation(msgspec.structs.replace(spec, devices=devices), 0)


def _learned(features: ServerFeatures, wrote: ResourceSliceSpec, got: ResourceSliceSpec) -> ServerFeatures:
    """Return ``features`` without those whose fields the API server dropped.

    Args:
        features: features that the API server was believed to have.
        wrote: the spec that was written.
        got: the spec that the API server returned.
    """
    pairs = list(zip(wrote.devices, got.devices, strict=False))
    return replace(
        features,
        counters=features.counters
        and len(wrote.shared_counters) == len(got.shared_counters)
        and all(len(w.consumes_counters) == len(g.consumes_counters) for w, g in pairs),
        shares=features.shares and all(w.allow_multiple_allocations == g.allow_multiple_allocations for w, g in pairs),
        taints=features.taints and all(len(w.taints) == len(g.taints) for w, g in pairs),
    )
