"""Mirror of a kind of objects: its reported changes add up to the stored objects after any failure."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.adapters.kube.world import WAIT_S, until

from calabash.adapters.kube import (
    Expired,
    Mirror,
    MirrorChange,
    ObjectMeta,
    WatchEvent,
    WatchEventType,
    WideningMirror,
)
from calabash.adapters.kube.mirror import mirror as module
from calabash.adapters.kube.mirror.cache import MirrorCache
from calabash.adapters.kube.objects.core import CONFIG_MAP, ConfigMap
from calabash_testing.api_server.client import MemoryKube
from calabash_testing.api_server.observer import MirrorFailures


class RecordedChanges:
    """Recorder of what a mirror reports: its errors, and the objects that result from its changes.

    Changes that contradict earlier ones are recorded as well.
    """

    def __init__(self) -> None:
        self.objects: dict[str, ConfigMap] = {}
        self.told: list[tuple[str, str]] = []
        self.failures = MirrorFailures()
        self.wrong: list[str] = []

    def note(self, change: MirrorChange[ConfigMap]) -> None:
        before, after = change.before, change.after
        name = (after or before).metadata.name  # type: ignore[union-attr]
        known = self.objects.get(name)
        if (known is None) != (before is None) or (known and before and known.metadata.uid != before.metadata.uid):
            self.wrong.append(name)
        self.told.append((name, "add" if before is None else "del" if after is None else "mod"))
        if after is None:
            self.objects.pop(name, None)
        else:
            self.objects[name] = after


@pytest.fixture
def kube() -> MemoryKube:
    return MemoryKube()


@pytest.fixture
def recorded() -> RecordedChanges:
    return RecordedChanges()


@pytest.fixture
def mirror(kube: MemoryKube, recorded: RecordedChanges) -> Iterator[Mirror[ConfigMap]]:
    one = Mirror(kube, CONFIG_MAP, on_change=recorded.note, observer=recorded.failures)
    yield one
    kube.faults.down = False
    one.stop()


def add(kube: MemoryKube, name: str, **data: str) -> None:
    kube.create(CONFIG_MAP, {"metadata": {"name": name}, "data": data}, "ns")


def stored(kube: MemoryKube) -> dict[str, ConfigMap]:
    return {obj.metadata.name: obj for obj in kube.list(CONFIG_MAP).items}


def same(kube: MemoryKube, recorded: RecordedChanges, mirror: Mirror[ConfigMap]) -> bool:
    here = {name: obj for (_namespace, name), obj in mirror.snapshot().items()}
    return recorded.objects == stored(kube) == here


def test_the_first_list_is_told_before_it_counts_as_synced(
    kube: MemoryKube, recorded: RecordedChanges, mirror: Mirror[ConfigMap]
) -> None:
    add(kube, "a")
    assert not mirror.synced()
    mirror.start()
    assert mirror.synced(WAIT_S)
    assert recorded.told == [("a", "add")]
    assert mirror.get("a", "ns") is not None
    assert mirror.get("a") is None
    assert len(mirror) == 1


def test_a_delete_while_the_watch_was_away_and_its_past_forgotten_is_told(
    kube: MemoryKube, recorded: RecordedChanges, mirror: Mirror[ConfigMap]
) -> None:
    for name in ("a", "b", "c"):
        add(kube, name)
    mirror.start()
    assert mirror.synced(WAIT_S)
    kube.faults.down = True
    kube.faults.break_watches()
    until(lambda: len(recorded.failures.errors) > 0)
    kube.faults.down = False  # the next call goes through: all of this happens before it may
    with kube._store.changed:
        kube.delete(CONFIG_MAP, "a", "ns")
        kube.delete(CONFIG_MAP, "b", "ns")
        add(kube, "b")
        kube.faults.compact_events()
    until(lambda: same(kube, recorded, mirror))
    assert recorded.wrong == []
    assert sorted(recorded.told[3:]) == [("a", "del"), ("b", "add"), ("b", "del")]
    assert mirror.lists == 2
    assert any(isinstance(error, Expired) for error in recorded.failures.errors)


def test_a_watch_that_breaks_goes_on_where_it_was_without_a_list(
    kube: MemoryKube, recorded: RecordedChanges, mirror: Mirror[ConfigMap]
) -> None:
    mirror.start()
    assert mirror.synced(WAIT_S)
    for turn in range(6):
        add(kube, f"n{turn}")
        until(lambda: same(kube, recorded, mirror))
        until(lambda: bool(kube.faults.watches))
        kube.faults.break_watches()
    until(lambda: len(recorded.failures.errors) == 6)
    add(kube, "last")
    until(lambda: same(kube, recorded, mirror))
    assert mirror.lists == 1


def test_bookmarks_move_a_quiet_watch_past_what_is_forgotten(
    kube: MemoryKube, recorded: RecordedChanges, mirror: Mirror[ConfigMap]
) -> None:
    mirror.start()
    assert mirror.synced(WAIT_S)
    until(lambda: bool(kube.faults.watches))
    kube.faults.compact_events()
    kube.faults.bookmark()
    until(lambda: mirror._version == str(kube._store.version))
    kube.faults.break_watches()
    until(lambda: len(recorded.failures.errors) == 1)
    add(kube, "a")
    until(lambda: same(kube, recorded, mirror))
    assert mirror.lists == 1


def test_a_server_that_is_away_at_first_is_waited_for(
    kube: MemoryKube, recorded: RecordedChanges, mirror: Mirror[ConfigMap]
) -> None:
    kube.faults.down = True
    add_later = threading.Timer(0.3, lambda: setattr(kube.faults, "down", False))
    add_later.start()
    mirror.start()
    assert mirror.synced(WAIT_S)
    assert recorded.failures.errors


def test_a_fault_of_the_listener_stops_nothing(kube: MemoryKube) -> None:
    failures = MirrorFailures()

    def bad(_change: MirrorChange[ConfigMap]) -> None:
        raise KeyError("bad")

    mirror = Mirror(kube, CONFIG_MAP, on_change=bad, observer=failures)
    mirror.start()
    assert mirror.synced(WAIT_S)
    add(kube, "a")
    add(kube, "b")
    until(lambda: len(failures.errors) == 2)
    mirror.stop()
    assert len(mirror) == 2


def test_after_stop_nothing_is_told(kube: MemoryKube, recorded: RecordedChanges, mirror: Mirror[ConfigMap]) -> None:
    mirror.start()
    assert mirror.synced(WAIT_S)
    mirror.stop()
    add(kube, "a")
    assert recorded.told == []
    assert not kube.faults.watches


def test_only_what_the_selector_matches_is_held(kube: MemoryKube) -> None:
    for name in ("a", "b"):
        kube.create(CONFIG_MAP, {"metadata": {"name": name, "labels": {"app": name}}}, "ns")
    mirror = Mirror(kube, CONFIG_MAP, label_selector="app=a")
    mirror.start()
    assert mirror.synced(WAIT_S)
    kube.patch(CONFIG_MAP, "b", "ns", body={"metadata": {"labels": {"app": "a"}}})
    kube.patch(CONFIG_MAP, "a", "ns", body={"metadata": {"labels": {"app": "b"}}})
    until(lambda: set(mirror.snapshot()) == {("ns", "b")})
    mirror.stop()


def test_a_watch_that_lags_behind_what_is_remembered_is_expired_and_loses_nothing(
    kube: MemoryKube, recorded: RecordedChanges, mirror: Mirror[ConfigMap], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calabash_testing.api_server.store._EVENTS_MAX", 10)
    mirror.start()
    assert mirror.synced(WAIT_S)
    with kube._store.changed:
        for number in range(100):
            add(kube, f"n{number}")
    until(lambda: same(kube, recorded, mirror))
    assert recorded.wrong == []


@pytest.mark.parametrize("seed", range(8))
def test_a_hundred_breaks_among_a_thousand_changes_lose_and_double_nothing(
    kube: MemoryKube, recorded: RecordedChanges, mirror: Mirror[ConfigMap], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calabash.adapters.kube.mirror.mirror._BACKOFF_FIRST_S", 0.002)
    monkeypatch.setattr("calabash.adapters.kube.mirror.mirror._BACKOFF_MAX_S", 0.01)
    chance = random.Random(seed)
    mirror.start()
    for turn in range(1000):
        _change(kube, chance)
        if turn % 10 == 0:
            _break(kube, chance)
    kube.faults.down = False
    until(lambda: same(kube, recorded, mirror))
    assert recorded.wrong == []


def _change(kube: MemoryKube, chance: random.Random) -> None:
    down, kube.faults.down = kube.faults.down, False
    with kube._store.changed:
        name = f"n{chance.randrange(12)}"
        have: Any = kube.get(CONFIG_MAP, name, "ns")
        if have is None:
            add(kube, name)
        elif chance.random() < 0.4:
            kube.delete(CONFIG_MAP, name, "ns")
        else:
            kube.patch(CONFIG_MAP, name, "ns", body={"data": {"k": str(chance.random())}})
    kube.faults.down = down


def _break(kube: MemoryKube, chance: random.Random) -> None:
    what = chance.randrange(4)
    if what == 0:
        kube.faults.compact_events()
    elif what == 1:
        kube.faults.down = not kube.faults.down
    kube.faults.break_watches()


class DeafKube(MemoryKube):
    """API server whose watches stay open and deliver no events."""

    def watch(self, *words: Any, **more: Any) -> Any:
        watch = super().watch(*words, **more)
        watch._something = lambda: watch._closed  # type: ignore[method-assign]
        return watch


def test_what_a_silent_watch_did_not_tell_is_told_when_a_new_list_is_asked_for(recorded: RecordedChanges) -> None:
    kube = DeafKube()
    mirror = Mirror(kube, CONFIG_MAP, on_change=recorded.note, observer=recorded.failures)
    mirror.start()
    assert mirror.synced(WAIT_S)
    assert mirror.renewed()
    add(kube, "a")
    mirror.renew()
    until(mirror.renewed)
    assert set(recorded.objects) == {"a"}
    assert mirror.lists == 2
    mirror.stop()
    assert recorded.failures.errors == []


def test_a_new_list_that_was_asked_for_while_the_server_is_away_is_made_when_it_is_back(
    kube: MemoryKube, recorded: RecordedChanges, mirror: Mirror[ConfigMap]
) -> None:
    mirror.start()
    assert mirror.synced(WAIT_S)
    kube.faults.down = True
    kube.faults.break_watches()
    until(lambda: bool(recorded.failures.errors))
    mirror.renew()
    assert not mirror.renewed()
    kube.faults.down = False
    add(kube, "a")
    until(mirror.renewed)
    assert set(recorded.objects) == {"a"}


def test_mirror_in_a_long_pause_retries_at_once_when_it_is_hurried(
    kube: MemoryKube, recorded: RecordedChanges, mirror: Mirror[ConfigMap], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BACKOFF_FIRST_S", 500.0)
    monkeypatch.setattr(module, "_BACKOFF_MAX_S", 500.0)
    kube.faults.down = True
    mirror.start()
    until(lambda: bool(recorded.failures.errors))
    kube.faults.down = False

    def hurried() -> bool:
        mirror.hurry()
        return mirror.synced()

    until(hurried)


def test_what_is_not_to_be_held_is_neither_held_nor_told_and_goes_when_it_changes_so(
    kube: MemoryKube, recorded: RecordedChanges
) -> None:
    add(kube, "in", kind="ours")
    add(kube, "out", kind="theirs")
    mirror = Mirror(
        kube, CONFIG_MAP, on_change=recorded.note, keep=lambda one: one if one.data.get("kind") == "ours" else None
    )
    mirror.start()
    assert mirror.synced(WAIT_S)
    assert set(recorded.objects) == {"in"}
    for name, kind in (("out", "ours"), ("in", "theirs")):
        kube.patch(CONFIG_MAP, name, "ns", body={"data": {"kind": kind}})
    until(lambda: set(recorded.objects) == {"out"})
    assert [key[1] for key in mirror.snapshot()] == ["out"]
    assert recorded.told == [("in", "add"), ("out", "add"), ("in", "del")]
    assert recorded.wrong == []
    mirror.stop()


def test_a_watch_that_is_behind_a_list_does_not_take_back_what_that_said() -> None:
    told: list[tuple[str, str]] = []

    def note(change: MirrorChange[ConfigMap]) -> None:
        one = change.after or change.before
        assert one is not None
        told.append((one.metadata.uid, "gone" if change.after is None else one.metadata.resource_version))

    def seen(uid: str, version: int) -> ConfigMap:
        return ConfigMap(metadata=ObjectMeta(name="web-0", namespace="ns", uid=uid, resource_version=str(version)))

    cache = MirrorCache(note)
    cache.put_ahead(seen("second", 140))
    cache.apply(WatchEvent(type=WatchEventType.MODIFIED, resource_version="105", object=seen("first", 105)))
    cache.apply(WatchEvent(type=WatchEventType.DELETED, resource_version="110", object=seen("first", 110)))
    cache.apply(WatchEvent(type=WatchEventType.ADDED, resource_version="130", object=seen("second", 130)))
    cache.apply(WatchEvent(type=WatchEventType.MODIFIED, resource_version="140", object=seen("second", 140)))
    assert told == [("second", "140")]
    cache.apply(WatchEvent(type=WatchEventType.DELETED, resource_version="150", object=seen("second", 150)))
    assert told == [("second", "140"), ("second", "gone")]


def test_objects_that_were_left_out_are_listed_when_they_are_included(
    kube: MemoryKube, recorded: RecordedChanges
) -> None:
    wanted: set[str] = {"a"}
    for name in "abc":
        add(kube, name)
    mirror: WideningMirror[ConfigMap] = WideningMirror(
        kube, CONFIG_MAP, on_change=recorded.note, keep=lambda one: one if one.metadata.name in wanted else None
    )
    mirror.start()
    assert mirror.synced(WAIT_S)
    wanted |= {"b", "c"}
    number = mirror.include("metadata.name=b")
    until(lambda: mirror.included(number))
    assert set(recorded.objects) == {"a", "b"}
    kube.delete(CONFIG_MAP, "b", "ns")
    until(lambda: set(recorded.objects) == {"a"})
    assert mirror.lists == 1
    assert recorded.wrong == []
    mirror.stop()
