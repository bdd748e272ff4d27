"""Objects of every kind with one hostile value each, as JSON text, and an API server that returns such text as it is."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from tests.unit.adapters.kube.world import STREAM, Line, Scripted, answer, chunk

from calabash.adapters.kube.http.access import ApiAccess
from calabash.adapters.kube.objects.meta import Kind

Json = Any
NAME, NAMESPACE, UID = "bad", "mallory", "u-bad"

DEEP_LISTS = b"[" * 1200 + b"]" * 1200
DEEP_MAPS = b'{"a":' * 1200 + b"1" + b"}" * 1200
VERY_DEEP = b"[" * 200_000 + b"]" * 200_000
NEARLY_DEEP = b"[" * 400 + b"]" * 400

VALUES: dict[str, bytes] = {
    "null": b"null",
    "true": b"true",
    "word": b'"no such value"',
    "empty word": b'""',
    "long word": b'"' + b"x" * 30_000 + b'"',
    "surrogate": rb'"\ud800"',
    "two surrogates the wrong way round": rb'"\udc00\ud800"',
    "escaped backslash before u": rb'"\\ud800"',
    "nul": rb'"\u0000"',
    "bytes that are not UTF-8": b'"\xff\xfe"',
    "negative": b"-1",
    "fraction": b"0.5",
    "huge integer": b"1" + b"0" * 400,
    "integer of 5000 digits": b"9" * 5000,
    "infinite": b"1e999",
    "quantity beyond bounds": b'"1' + b"0" * 300 + b'"',
    "quantity with an exponent": b'"1e300"',
    "no quantity": b'"12 apples"',
    "no time": b'"0000-99-99T99:99:99Z"',
    "time far away": b'"9999999-01-01T00:00:00Z"',
    "empty list": b"[]",
    "list of null": b"[null]",
    "list of numbers": b"[1,2]",
    "list of lists": b"[[[]]]",
    "empty map": b"{}",
    "map of null": b'{"a":null}',
    "map of numbers": b'{"a":1}',
    "duplicate keys": b'{"a":"1","a":"2"}',
    "deep lists": DEEP_LISTS,
    "deep maps": DEEP_MAPS,
    "lists of 400 levels": NEARLY_DEEP,
    "map with a deep value": b'{"a":' + DEEP_LISTS + b"}",
    "list with a deep value": b"[" + DEEP_MAPS + b"]",
}


def sample(type_: Any) -> Json:
    """Return a valid value of a type with every field present."""
    return _sample(msgspec.inspect.type_info(type_))


def _sample(info: Any) -> Json:
    match info:
        case msgspec.inspect.StructType():
            return {field.encode_name: _sample(field.type) for field in info.fields}
        case msgspec.inspect.UnionType():
            return _sample(next(one for one in info.types if not isinstance(one, msgspec.inspect.NoneType)))
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType() | msgspec.inspect.FrozenSetType():
            return [_sample(info.item_type)]
        case msgspec.inspect.DictType():
            return {"a": _sample(info.value_type)}
        case msgspec.inspect.EnumType():
            return next(iter(info.cls)).value
    return _SIMPLE.get(type(info), "a")


_SIMPLE: dict[type, Json] = {
    msgspec.inspect.IntType: 1,
    msgspec.inspect.FloatType: 1.0,
    msgspec.inspect.BoolType: False,
    msgspec.inspect.AnyType: {"a": 1},
}


def good(kind: Kind[Any], name: str, version: int = 1) -> bytes:
    """Return a valid object of a kind as JSON text."""
    return msgspec.json.encode(_named(kind, name, "alice", f"u-{name}", version))


def hostile(kind: Kind[Any], version: int = 2) -> Iterator[tuple[str, bytes]]:
    """Yield objects of a kind, each with a hostile value in one of its fields: a description, and the JSON text.

    All objects have the same name.
    """
    base = _named(kind, NAME, NAMESPACE, UID, version)
    for path in _paths(base):
        if path == ("metadata",) or path[:2] in {
            ("metadata", n) for n in ("name", "namespace", "uid", "resourceVersion")
        }:
            continue
        for label, value in VALUES.items():
            yield f"{'.'.join(map(str, path))}: {label}", _text(base, path, value)
    for place in (("managedFields",), ("metadata", "managedFields"), ("spec", "unknown"), ("status", "unknown")):
        for label, value in VALUES.items():
            if len(place) == 1 or isinstance(base.get(place[0]), dict):
                yield f"{'.'.join(place)}: {label}", _text(base, place, value)


def nameless(kind: Kind[Any]) -> Iterator[tuple[str, bytes]]:
    """Yield objects with a hostile value in their metadata, so that their name cannot be read: description and JSON text."""
    base = _named(kind, NAME, NAMESPACE, UID, 2)
    for path in (("metadata",), ("metadata", "name"), ("metadata", "uid"), ("metadata", "resourceVersion")):
        for label, value in VALUES.items():
            yield f"{'.'.join(path)}: {label}", _text(base, path, value)
    for label, value in VALUES.items():
        yield f"object: {label}", value


def _named(kind: Kind[Any], name: str, namespace: str, uid: str, version: int) -> Json:
    made = sample(kind.type)
    made["metadata"] |= {
        "name": name,
        "namespace": namespace if kind.namespaced else "",
        "uid": uid,
        "resourceVersion": str(version),
    }
    return {"apiVersion": kind.api_version, "kind": kind.name, **made}


def _paths(value: Json, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in pairs:
        yield (*at, key)
        yield from _paths(one, (*at, key))


def _text(value: Json, path: tuple[Any, ...], replaced: bytes) -> bytes:
    """Return the JSON text of a value, in which the value at the path is replaced by other text."""
    if not path:
        return replaced
    if isinstance(value, list):
        parts = [
            _text(one, path[1:], replaced) if at == path[0] else msgspec.json.encode(one)
            for at, one in enumerate(value)
        ]
        return b"[" + b",".join(parts) + b"]"
    members = dict(value)
    members.setdefault(path[0], {})
    return (
        b"{"
        + b",".join(
            msgspec.json.encode(key)
            + b":"
            + (_text(one, path[1:], replaced) if key == path[0] else msgspec.json.encode(one))
            for key, one in members.items()
        )
        + b"}"
    )


class RawApi:
    """API server that returns objects as given JSON text: lists in pages, and watches that ``event`` sends events to.

    ``opened`` is the number of watches that were opened so far, by path; a later event reaches them. While ``refuses`` is
    not empty, it is the response to every request.
    """

    def __init__(self) -> None:
        self.items: dict[str, list[bytes]] = {}
        self.version = 10
        self.refuses = b""
        self.asked: Counter[str] = Counter()
        self.limits: list[int] = []
        self.opened: Counter[str] = Counter()
        self.expired = False
        self._lock = threading.Lock()
        self._watches: list[tuple[str, queue.SimpleQueue[bytes | None]]] = []
        self._server = Scripted(self._serve)

    def access(self) -> ApiAccess:
        return self._server.access()

    def close(self) -> None:
        self.end_watches()
        self._server.close()

    def event(self, kind: Kind[Any], what: str, text: bytes) -> None:
        """Send an event to all open watches of a kind."""
        line = b'{"type":"' + what.encode() + b'","object":' + text + b"}\n"
        with self._lock:
            for path, lines in self._watches:
                if path == kind.path():
                    lines.put(line)

    def watched(self, kind: Kind[Any]) -> bool:
        with self._lock:
            return any(path == kind.path() for path, _ in self._watches)

    def end_watches(self) -> None:
        with self._lock:
            for _, lines in self._watches:
                lines.put(None)

    def _serve(self, line: Line) -> None:
        while request := line.request():
            target = urlsplit(request.split(b" ", 2)[1].decode())
            query = {key: values[0] for key, values in parse_qs(target.query).items()}
            with self._lock:
                self.asked[("watch " if "watch" in query else "list ") + target.path] += 1
            if self.refuses:
                line.send(self.refuses)
            elif "watch" in query:
                self._follow(line, target.path)
                return
            else:
                line.send(answer(self._page(target.path, query)))

    def _page(self, path: str, query: dict[str, str]) -> bytes:
        begin, limit = int(query.get("continue", "0")), int(query["limit"])
        items = self.items.get(path, [])
        more = str(begin + limit) if begin + limit < len(items) else ""
        with self._lock:
            self.limits.append(limit)
        meta = msgspec.json.encode({"resourceVersion": str(self.version), "continue": more})
        body = b",".join(items[begin : begin + limit])
        return b'{"kind":"List","apiVersion":"v1","metadata":' + meta + b',"items":[' + body + b"]}"

    def _follow(self, line: Line, path: str) -> None:
        if self.expired:
            gone = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n'
            line.send(STREAM, chunk(gone), b"0\r\n\r\n")
            line.close()
            return
        lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        with self._lock:
            self._watches.append((path, lines))
            self.opened[path] += 1
        try:
            line.send(STREAM)
            while (text := lines.get()) is not None:
                line.send(chunk(text))
        finally:
            with self._lock:
                self._watches.remove((path, lines))
            line.close()
