"""Reader of the kubelet's checkpoint, ``kubelet_internal_checkpoint``: the device IDs of each container.

It is an internal file of the kubelet and the only source that has init containers and pod UIDs before a container
starts. The file has no version number, so only the exact form that Kubernetes 1.34 to 1.36 write is accepted, and any
other form is refused. The kubelet replaces the file as a whole, so that a reader never sees half of one.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from google.protobuf.message import DecodeError

from calabash.adapters.kubelet.protocol import CheckpointEntry
from calabash.adapters.kubelet.stubs import deviceplugin_pb2 as pb
from calabash.model.errors import CalabashError, Reason

CHECKPOINT = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
CHECKPOINT_BYTES_MAX = 16 << 20

_Text = Annotated[str, msgspec.Meta(max_length=512)]
_Ids = Annotated[tuple[_Text, ...], msgspec.Meta(max_length=65536)]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="pascal"):
    pass


class _Entry(_Strict, frozen=True):
    pod_uid: _Text = msgspec.field(name="PodUID")
    container_name: _Text
    resource_name: _Text
    device_ids: dict[str, _Ids | None] | None = msgspec.field(name="DeviceIDs")  # by NUMA node
    alloc_resp: str | None  # base64 of the ContainerAllocateResponse


class _Data(_Strict, frozen=True):
    pod_device_entries: tuple[_Entry, ...] | None
    registered_devices: dict[str, _Ids | None] | None


class _Checkpoint(_Strict, frozen=True):
    data: _Data
    checksum: int  # over an internal form of the kubelet's; the file is replaced whole, so it is not needed


_DECODER = msgspec.json.Decoder(_Checkpoint)


class Checkpoint:
    """The checkpoint file, read anew for every call (0.1 to 0.7 ms on a full node)."""

    def __init__(self, path: Path = CHECKPOINT) -> None:
        self._path = path
        self._registered: tuple[tuple[int, ...], dict[str, tuple[str, ...]]] = ((), {})

    def registered(self) -> Mapping[str, tuple[str, ...]]:
        """Return the resources whose plug-in had healthy devices when the file was last written, with these devices.

        The kubelet writes the file when a plug-in reports its devices, but not when a plug-in ends; a listed plug-in
        may have ended since. Raises as ``read``.
        """
        written = self._signature()
        if not written or written != self._registered[0]:
            body = self._body()
            named = (self._decoded(body).registered_devices or {}) if body is not None else {}
            self._registered = (written, {name: tuple(ids) for name, ids in named.items() if ids})
        return self._registered[1]

    def _signature(self) -> tuple[int, ...]:
        try:
            found = self._path.stat(follow_symlinks=False)
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size

    def read(self, *resources: str) -> tuple[CheckpointEntry, ...]:
        """Return the containers that have device IDs of any of ``resources``; () if there is no file yet.

        Raises CalabashError(BAD_FILE) if the file cannot be read or has another form.
        """
        body = self._body()
        if body is None:
            return ()
        entries = self._decoded(body).pod_device_entries or ()
        return tuple(self._entry(entry) for entry in entries if entry.resource_name in resources)

    def _decoded(self, body: bytes) -> _Data:
        try:
            return _DECODER.decode(body).data
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise self._unknown(str(error)) from error

    def _entry(self, entry: _Entry) -> CheckpointEntry:
        try:
            answer = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry.alloc_resp or "", validate=True))
        except (binascii.Error, ValueError, DecodeError) as error:
            raise self._unknown(f"the answer for container {entry.container_name}: {error}") from error
        by_node = sorted((entry.device_ids or {}).items())
        return CheckpointEntry(
            pod_uid=entry.pod_uid,
            container=entry.container_name,
            resource=entry.resource_name,
            device_ids=tuple(one for _node, ids in by_node for one in ids or ()),
            cdi_names=tuple(device.name for device in answer.cdi_devices),
        )

    def _body(self) -> bytes | None:
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(error.strerror or "") from error
        with os.fdopen(file, "rb") as source:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise self._unreadable("not a file")
            body = source.read(CHECKPOINT_BYTES_MAX + 1)
        if len(body) > CHECKPOINT_BYTES_MAX:
            raise self._unreadable(f"more than {CHECKPOINT_BYTES_MAX} bytes")
        return body

    def _unreadable(self, why: str) -> CalabashError:
        return CalabashError(
            f"the kubelet's checkpoint {self._path} cannot be read: {why}",
            reason=Reason.BAD_FILE,
            hint="mount the kubelet's device-plugins directory into the agent",
        )

    def _unknown(self, why: str) -> CalabashError:
        return CalabashError(
            f"the kubelet's checkpoint {self._path} has an unsupported form: {why[:300]}",
            reason=Reason.BAD_FILE,
            hint="supported are the kubelets of Kubernetes 1.34 to 1.36",
        )
