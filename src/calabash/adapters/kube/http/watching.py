"""Watch of the API server over HTTP: one line of JSON for each event."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Generic

import msgspec

from calabash.adapters.kube.errors import KubeError, error_for, read_status
from calabash.adapters.kube.http.transport import HttpStream
from calabash.adapters.kube.http.wire import decode, decode_event, event_parts
from calabash.adapters.kube.objects.meta import Kind, T
from calabash.adapters.kube.protocol import SkippedObject, WatchEvent, WatchEventType
from calabash.model.errors import Reason

_LINE_BYTES_MAX = 32 << 20  # an object of 1.5 MiB in etcd is less than 13 MiB as JSON


class _BookmarkMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Bookmark(msgspec.Struct, frozen=True):
    metadata: _BookmarkMeta


_BOOKMARKS = msgspec.json.Decoder(_Bookmark)


class HttpWatch(Generic[T]):
    """Implementation of ``Watch`` over an HTTP stream."""

    def __init__(self, kind: Kind[T], stream: HttpStream, asked: str) -> None:
        self._kind = kind
        self._stream = stream
        self._asked = asked
        self._reading = threading.Lock()

    def __iter__(self) -> Iterator[WatchEvent[T]]:
        with self._reading:
            try:
                yield from (self._event(line) for line in self._lines())
            finally:
                self._stream.release()

    def close(self) -> None:
        self._stream.close()
        if self._reading.acquire(blocking=False):  # no reader, so no other thread would close the descriptors
            self._stream.release()
            self._reading.release()

    def _lines(self) -> Iterator[bytes]:
        rest: list[bytes] = []
        size = 0
        while part := self._stream.read():
            *lines, last = part.split(b"\n")
            if lines:
                lines[0] = b"".join((*rest, lines[0]))
                rest, size = [], 0
                yield from lines
            if last:
                rest.append(last)
                size += len(last)
                if size > _LINE_BYTES_MAX:
                    raise KubeError(
                        f"{self._asked}: an event has more than {_LINE_BYTES_MAX} bytes", reason=Reason.API_DOWN
                    )

    def _event(self, line: bytes) -> WatchEvent[T]:
        try:
            name, text = event_parts(line)
        except ValueError as error:
            raise KubeError(f"{self._asked}: an event cannot be read: {error}", reason=Reason.API_DOWN) from error
        if name == "ERROR":
            reply = read_status(text)
            raise error_for(self._asked, reply.code or 500, reply)
        if name == "BOOKMARK":
            mark = decode(_BOOKMARKS, text, self._asked)
            return WatchEvent(
                type=WatchEventType.BOOKMARK, resource_version=mark.metadata.resource_version, object=None
            )
        try:
            what = WatchEventType(name)
        except ValueError as error:
            raise KubeError(f"{self._asked}: unknown type of event {name[:40]!r}", reason=Reason.API_DOWN) from error
        found = decode_event(self._kind, text)
        if isinstance(found, SkippedObject):
            return WatchEvent(type=what, resource_version=found.resource_version, object=None, skipped=found)
        return WatchEvent(type=what, resource_version=found.metadata.resource_version, object=found)
