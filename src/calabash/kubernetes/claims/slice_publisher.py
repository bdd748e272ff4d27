"""The ResourceSlices of a node in the API server: written when they are not what they should be, and not otherwise.

Theory of operation. All slices of a pool bear one generation; the scheduler takes none of them while some are of an older one.
So what changes several slices is a new generation of all, and what changes one, as the health of a card, is written to that one
as it is: no reader sees half of it. What is in the API server is known by a watch, which tells when the kubelet, or
anybody, has deleted or changed them; after an own writing it is believed again when a list has been read that is newer.

An API server drops fields of features that it does not have. What a writing returns is therefore compared with what was
written, and what was dropped is not offered: without shared counters nothing keeps two ways of giving a card apart, so the
node then offers whole cards only. That is learned again when the slices are gone, as after an upgrade of the node.
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

_ATTEMPTS = 5  # to find out what the API server keeps

log = structlog.get_logger(__name__)


class SlicePublisher:
    """Keeps the slices of one node. Not for several threads; ``stop`` ends its watch."""

    def __init__(self, client: KubeClient, node: str) -> None:
        self._client = client
        self._node = node
        skipped = SkippedObjects("calabash-agent").note
        self._mirror = Mirror(client, RESOURCE_SLICE, on_skipped=skipped, field_selector=f"spec.nodeName={node}")
        self._started = False
        self._features = ServerFeatures()
        self._told: tuple[tuple[DeviceSnapshot, ...], SliceFacts, ServerFeatures] | None = None
        self._drawn: tuple[ResourceSliceSpec, ...] = ()
        self._generation = 0
        self._node_is: list[dict[str, Any]] = []
        self._wanted: tuple[ResourceSliceSpec, ...] | None = None
        self._kept: dict[str, ResourceSliceSpec] = {}  # as the API server gave them back

    @property
    def degraded(self) -> str:
        """What is not offered because the API server cannot keep it; "" where all is."""
        features = self._features
        if not features.counters:
            return "whole cards only: the API server keeps no shared counters (feature DRAPartitionableDevices)"
        missing = [] if features.shares else ["no shared devices (feature DRAConsumableCapacity)"]
        missing += [] if features.taints else ["cards that are unwell are left out (no feature DRADeviceTaints)"]
        return "; ".join(missing)

    def publish(self, snapshot: NodeSnapshot, facts: SliceFacts) -> bool:
        """Write the slices where they are not what they should be; whether it did. Raises KubeError."""
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
                "the API server does not keep all of the slices", offered=self.degraded or "counters beside devices"
            )
            wanted, only = self._of(snapshot, facts), None
        raise CalabashError(
            "the API server gives the slices of this node back as something else", reason=Reason.API_DOWN
        )

    def withdraw(self) -> None:
        """Take all slices of the node away. Raises KubeError."""
        listed = self._client.list(RESOURCE_SLICE, field_selector=f"spec.nodeName={self._node}")
        for one in listed.items:
            if one.spec.driver == DRIVER:
                self._client.delete(RESOURCE_SLICE, one.metadata.name)
        self._wanted, self._kept = None, {}

    def stop(self) -> None:
        """End the watch. The slices stay: whoever is replaced for a moment takes nothing away."""
        if self._started:
            self._mirror.stop()

    def _of(self, snapshot: NodeSnapshot, facts: SliceFacts) -> tuple[ResourceSliceSpec, ...]:
        """The slices, drawn up anew only where something has changed that they tell: that takes milliseconds."""
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
        """The one slice that is to be changed; None where it is not just one."""
        if (
            self._wanted is None
            or len(wanted) != len(self._wanted)
            or (self._mirror.renewed() and not self._is_kept(have))
        ):
            return None
        changed = [n for n, (old, new) in enumerate(zip(self._wanted, wanted, strict=True)) if old != new]
        return changed[0] if len(changed) == 1 else None

    def _write_one(self, number: int, bare: ResourceSliceSpec) -> ServerFeatures:
        """Write one slice of a generation that stands. As ``_write``."""
        name, spec = slice_name(self._node, number), _in_generation(bare, self._generation)
        self._wanted = None
        try:
            written = self._put(name, spec, self._node_is or self._owner())
        finally:
            self._mirror.renew()
        self._kept[name] = _bare(written.spec)
        return _learned(self._features, spec, written.spec)

    def _write(self, wanted: Sequence[ResourceSliceSpec], have: Mapping[str, ResourceSlice]) -> ServerFeatures:
        """Write one generation. What it turned out that the API server keeps, as before where it keeps all."""
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
            log.warning("the API server refuses the slices", error=error.message)
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
        """The node: its slices go with it."""
        node = self._client.get(NODE, self._node)
        if node is None:
            raise CalabashError(f"node {self._node} is not in the API server", reason=Reason.NOT_FOUND)
        uid = node.metadata.uid
        self._node_is = [{"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid, "controller": True}]
        return self._node_is


def _in_generation(spec: ResourceSliceSpec, generation: int) -> ResourceSliceSpec:
    """The same in another generation of its pool."""
    return msgspec.structs.replace(spec, pool=msgspec.structs.replace(spec.pool, generation=generation))


def _bare(spec: ResourceSliceSpec) -> ResourceSliceSpec:
    """Without what differs from writing to writing."""
    devices = tuple(
        msgspec.structs.replace(
            device, taints=tuple(msgspec.structs.replace(taint, time_added=None) for taint in device.taints)
        )
        for device in spec.devices
    )
    return _in_generation(msgspec.structs.replace(spec, devices=devices), 0)


def _learned(features: ServerFeatures, wrote: ResourceSliceSpec, got: ResourceSliceSpec) -> ServerFeatures:
    """What the API server keeps, by what it gave back."""
    pairs = list(zip(wrote.devices, got.devices, strict=False))
    return replace(
        features,
        counters=features.counters
        and len(wrote.shared_counters) == len(got.shared_counters)
        and all(len(w.consumes_counters) == len(g.consumes_counters) for w, g in pairs),
        shares=features.shares and all(w.allow_multiple_allocations == g.allow_multiple_allocations for w, g in pairs),
        taints=features.taints and all(len(w.taints) == len(g.taints) for w, g in pairs),
    )
