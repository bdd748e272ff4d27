"""Hostile objects that users can store: lists, watches and mirrors still return all other objects."""

from __future__ import annotations

import sys
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.unit.adapters.kube import hostile
from tests.unit.adapters.kube.hostile import RawApi, good
from tests.unit.adapters.kube.world import WAIT_S, until

from calabash.adapters.kube import (
    HttpKubeClient,
    Kind,
    KubeError,
    Mirror,
    UnreadableObject,
    WideningMirror,
)
from calabash.adapters.kube.http.wire import decode_page
from calabash.adapters.kube.objects import claims, groups, resources
from calabash.adapters.kube.objects import core as objects_core
from calabash.adapters.kube.objects.network_resources import NETWORK_KINDS
from calabash.adapters.kube.scanning import DEPTH_MAX, elements, members, repaired
from calabash.kubernetes.admission.run import OWNED_QUEUE
from calabash.kubernetes.metrics.series import USED_NODE
from calabash.model.errors import Reason
from calabash_testing.api_server.observer import MirrorFailures

_FOUND: list[Kind[Any]] = [
    kind
    for module in (claims, groups, objects_core, resources)
    for kind in vars(module).values()
    if isinstance(kind, Kind)
]
KINDS = {
    f"{kind.api_version}/{kind.plural}/{kind.type.__name__}": kind
    for kind in (*_FOUND, *NETWORK_KINDS.values(), OWNED_QUEUE, USED_NODE)
}
# Kinds that a user with the role `edit` can write are tested every time.
USERS = {
    id(one) for one in (objects_core.POD, objects_core.PDB, objects_core.EVENT, groups.POD_GROUP, groups.VOLCANO_GROUP)
} | {id(claims.RESOURCE_CLAIM)}
by_kind = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=name, marks=() if id(kind) in USERS else (pytest.mark.complete,))
        for name, kind in KINDS.items()
    ],
)


def page(*items: bytes) -> bytes:
    return b'{"kind":"List","metadata":{"resourceVersion":"7","continue":"next"},"items":[' + b",".join(items) + b"]}"


@pytest.fixture
def api() -> Iterator[RawApi]:
    made = RawApi()
    yield made
    made.close()


@by_kind
def test_list_with_one_hostile_object_has_all_others(kind: Kind[Any]) -> None:
    before, after = good(kind, "first"), good(kind, "last")
    number = 0
    for label, text in hostile.hostile(kind):
        listing, following = decode_page(kind, page(before, text, after), "GET things")
        number += 1
        assert (listing.resource_version, following) == ("7", "next"), label
        names = [item.metadata.name for item in listing.items]
        assert [name for name in names if name != hostile.NAME] == ["first", "last"], label
        named = [(one.name, one.uid, one.resource_version) for one in listing.skipped]
        assert named == ([(hostile.NAME, hostile.UID, "2")] if hostile.NAME not in names else []), label
    assert number > 200


@by_kind
def test_list_with_an_object_of_hostile_metadata_has_all_others(kind: Kind[Any]) -> None:
    before, after = good(kind, "first"), good(kind, "last")
    for label, text in hostile.nameless(kind):
        listing, _ = decode_page(kind, page(before, text, after), "GET things")
        assert {"first", "last"} <= {item.metadata.name for item in listing.items}, label
        assert len(listing.items) + len(listing.skipped) == 3, label


def test_part_of_another_driver_does_not_hide_the_claim() -> None:
    """A claim is read although its parameters for another driver cannot be decoded."""
    for value in (
        hostile.DEEP_LISTS,
        hostile.DEEP_MAPS,
        hostile.VERY_DEEP,
        rb'"\ud800"',
        b"1e999",
        b"9" * 5000,
        b'"\xff"',
    ):
        text = (
            b'{"metadata":{"name":"c","namespace":"n","uid":"u"},"spec":{"devices":{"config":[{"opaque":'
            b'{"driver":"gpu.example.com","parameters":{"a":' + value + b"}}}],"
            b'"requests":[{"name":"r","exactly":{"deviceClassName":"calabash"}}]}}}'
        )
        listing, _ = decode_page(claims.RESOURCE_CLAIM, page(text), "GET claims")
        assert listing.skipped == ()
        exactly = listing.items[0].spec.devices.requests[0].exactly
        assert exactly is not None
        assert exactly.device_class_name == "calabash"


def test_list_that_is_cut_off_or_no_list_is_api_down() -> None:
    whole = page(good(objects_core.POD, "a"))
    for text in (b"", b"{", b"[]", b"null", whole[:-2], whole[:40], b"<html>", whole + b"}", b"\xff" * 10):
        if text == whole + b"}":
            continue
        with pytest.raises(KubeError) as caught:
            decode_page(objects_core.POD, text, "GET pods")
        assert caught.value.reason is Reason.API_DOWN


def test_repair_keeps_what_every_decoder_reads() -> None:
    value = {"a": [1, -2.5, 1e10, 2**53, "\\ud800", 'é\u0000😀"', None, True, {}], "b": {"c": [[]] * 40}}
    assert msgspec.json.decode(repaired(msgspec.json.encode(value))) == value
    assert msgspec.json.decode(repaired(rb'"\ud83d\ude00 \\ud800 \ud800x"')) == "😀 \\ud800 �x"


def test_repair_replaces_what_is_too_deep_and_nothing_beside_it() -> None:
    deep: Any = msgspec.json.decode(repaired(b'{"a":' + hostile.VERY_DEEP + b',"b":1}'))
    assert deep["b"] == 1
    levels, one = 0, deep["a"]
    while one is not None:
        levels, one = levels + 1, one[0]
    assert levels == DEPTH_MAX - 1


def test_scanner_needs_no_stack() -> None:
    limit = sys.getrecursionlimit()
    text = b'{"x":' + hostile.VERY_DEEP + b',"items":[' + hostile.VERY_DEEP + b',{"a":"]}"}]}'
    parts = members(text)
    spans = [text[start:end] for start, end in elements(text, parts["items"][0])]
    assert spans == [hostile.VERY_DEEP, b'{"a":"]}"}']
    assert sys.getrecursionlimit() == limit


def test_memory_for_a_hostile_page_is_bounded_by_its_size() -> None:
    text = page(*[b'{"metadata":{"name":"bad","annotations":{"a":"' + rb"\ud800\"" * 50_000 + b'"}}}'] * 8)
    tracemalloc.start()
    try:
        decode_page(objects_core.POD, text, "GET pods")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * len(text)


@by_kind
def test_mirror_holds_all_others_through_lists_and_events(kind: Kind[Any], api: RawApi) -> None:
    texts = [text for label, text in hostile.hostile(kind) if "deep" in label or "surrogate" in label]
    texts = texts[:: max(len(texts) // 100, 1)]
    kept = len(texts) // 2
    api.items[kind.path()] = [good(kind, "first"), *texts[:kept], good(kind, "last")]
    failures = MirrorFailures()
    errors = failures.errors
    mirror = Mirror(HttpKubeClient(api.access()), kind, observer=failures)
    mirror.start()
    try:
        assert mirror.synced(WAIT_S), errors
        assert {"first", "last"} <= {name for _, name in mirror.snapshot()}
        until(lambda: api.watched(kind))
        for number, text in enumerate(texts[kept:]):
            api.event(kind, ("ADDED", "MODIFIED", "DELETED")[number % 3], text)
        api.event(kind, "BOOKMARK", b'{"metadata":{"resourceVersion":"40"}}')
        api.event(kind, "ADDED", good(kind, "after", 41))
        until(lambda: any(name == "after" for _, name in mirror.snapshot()))
        assert {"first", "last", "after"} <= {name for _, name in mirror.snapshot()}
        assert mirror.lists == 1
        assert errors == []
    finally:
        mirror.stop()


def test_object_that_becomes_unreadable_stays_as_it_was_until_it_is_deleted(api: RawApi) -> None:
    kind = objects_core.CONFIG_MAP
    api.items[kind.path()] = [good(kind, "a"), good(kind, "b")]
    failures = MirrorFailures()
    skipped = failures.skipped
    mirror = Mirror(HttpKubeClient(api.access()), kind, observer=failures)
    mirror.start()
    broken = good(kind, "a", 20).replace(b'"data":{"a":"a"}', b'"data":5')
    try:
        assert mirror.synced(WAIT_S)
        until(lambda: api.watched(kind))
        api.event(kind, "MODIFIED", broken)
        until(lambda: bool(skipped))
        assert (skipped[0].namespace, skipped[0].name, skipped[0].resource_version) == ("alice", "a", "20")
        held = mirror.get("a", "alice")
        assert held is not None
        assert held.metadata.resource_version == "1"
        api.items[kind.path()] = [broken, good(kind, "b")]
        mirror.renew()
        until(mirror.renewed)
        assert mirror.get("a", "alice") is not None, "a new list keeps it as well"
        until(lambda: api.opened[kind.path()] == 2)
        api.event(kind, "MODIFIED", broken.replace(b"u-a", b"u-other"))
        until(lambda: mirror.get("a", "alice") is None)
    finally:
        mirror.stop()


def test_included_objects_are_read_beside_a_hostile_one(api: RawApi) -> None:
    kind = objects_core.CONFIG_MAP
    mirror: WideningMirror[objects_core.ConfigMap] = WideningMirror(HttpKubeClient(api.access()), kind)
    mirror.start()
    try:
        assert mirror.synced(WAIT_S)
        api.items[kind.path()] = [good(kind, "a").replace(b'"data":{"a":"a"}', b'"data":5'), good(kind, "b", 12)]
        number = mirror.include("metadata.name=b")
        until(lambda: mirror.included(number))
        assert [name for _, name in mirror.snapshot()] == ["b"]
    finally:
        mirror.stop()


def test_page_of_large_objects_is_read_in_smaller_pages(api: RawApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calabash.adapters.kube.http.client.PAGE_BYTES_MAX", 100_000)
    kind = objects_core.CONFIG_MAP
    api.items[kind.path()] = [
        good(kind, f"m{i}").replace(b'{"a":"a"}', b'{"a":"' + b"x" * 20_000 + b'"}') for i in range(30)
    ]
    listing = HttpKubeClient(api.access()).list(kind)
    assert [item.metadata.name for item in listing.items] == [f"m{i}" for i in range(30)]
    assert api.limits[:3] == [500, 62, 7]
    assert min(api.limits) == 1


def test_object_that_cannot_be_read_is_no_outage(api: RawApi) -> None:
    """Repeating the call would return the same object, so the error is not one after which callers repeat a call."""
    kind = objects_core.CONFIG_MAP
    text = good(kind, "a").replace(b'"data":{"a":"a"}', b'"data":5')
    api.refuses = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text
    with pytest.raises(UnreadableObject) as caught:
        HttpKubeClient(api.access()).get(kind, "a", "alice")
    assert caught.value.reason is Reason.BAD_REQUEST
    assert "alice/a" in caught.value.message


@pytest.mark.parametrize(
    "refusal",
    [
        b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=["429", "500", "503"],
)
def test_mirror_backs_off_while_the_server_refuses_and_catches_up(api: RawApi, refusal: bytes) -> None:
    kind = objects_core.CONFIG_MAP
    api.items[kind.path()] = [good(kind, "a")]
    mirror = Mirror(HttpKubeClient(api.access(), timeout_s=2.0), kind)
    mirror.start()
    try:
        assert mirror.synced(WAIT_S)
        until(lambda: api.watched(kind))
        before = sum(api.asked.values())
        api.refuses = refusal
        api.end_watches()
        outage = threading.Event()
        outage.wait(3.0)
        asked = sum(api.asked.values()) - before
        assert 1 <= asked <= 8, "the pauses double"
        lists = api.asked[f"list {kind.path()}"]
        if b"429" in refusal or b"503" in refusal:
            assert lists == 1, "an overloaded server is not asked for everything again"
        api.items[kind.path()] = [good(kind, "a"), good(kind, "b", 12)]
        api.version = 12
        api.refuses, api.expired = b"", True
        until(lambda: api.asked[f"list {kind.path()}"] > lists)
        api.expired = False
        until(lambda: len(mirror) == 2)
    finally:
        mirror.stop()
