"""Damaged journal: either everything that was written is read, or everything is refused with one message."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_store import _record

from calabash.adapters.store import open_store
from calabash.model.errors import CalabashError, Reason

RECORDS = 200
TRIES = 60


def _journal(home: Path) -> tuple[Path, list[str]]:
    """Write a journal of some pages and close it; return its path and its allocations."""
    path = home / "pool.db"
    store = open_store(f"sqlite:///{path}")
    names = [f"a{number}" for number in range(RECORDS)]
    for name in names:
        store.grant(_record(name))
    store.close()
    return path, sorted(names)


def _read(path: Path) -> Any:
    """Return all allocations, or the refusal; check that after a refusal everything else is refused alike."""
    try:
        store = open_store(f"sqlite:///{path}")
    except CalabashError as error:
        return error
    try:
        answers = [
            _outcome(lambda: sorted(record.id for record in store.allocations())),
            _outcome(lambda: store.grant(_record("fresh"))),
            _outcome(store.allocations),
            _outcome(lambda: store.events(after=0, limit=1)),
        ]
    finally:
        store.close()
    first = next((number for number, answer in enumerate(answers) if isinstance(answer, CalabashError)), len(answers))
    refusals = [str(answer) for answer in answers[first:]]
    assert len(set(refusals)) <= 1, "one message, from the first refusal on"
    return answers[first] if refusals else answers[0]


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except CalabashError as error:
        return error


@pytest.mark.parametrize("kind", ["cut", "zeroed page", "overwritten page", "no header", "text"])
def test_damaged_journal_is_read_whole_or_refused_as_damaged(tmp_path: Path, kind: str) -> None:
    path, names = _journal(tmp_path)
    sound = path.read_bytes()
    rng = random.Random(3)
    refused = 0
    for _ in range(TRIES if "page" in kind or kind == "cut" else 1):
        content, place = bytearray(sound), rng.randrange(len(sound) // 4096) * 4096
        if kind == "cut":
            content = content[: rng.randrange(100, len(content) - 4096)]
        elif kind == "zeroed page":
            content[place : place + 4096] = bytes(4096)
        elif kind == "overwritten page":
            content[place : place + 4096] = rng.randbytes(4096)
        elif kind == "no header":
            content[:100] = rng.randbytes(100)
        else:
            content = bytearray(b"this is no database\n" * 1000)
        for beside in tmp_path.glob("pool.db-*"):
            beside.unlink()
        path.write_bytes(content)
        found = _read(path)
        if isinstance(found, CalabashError):
            assert found.reason is Reason.STORE_DAMAGED, found
            assert "damaged" in found.message
            assert found.hint
            refused += 1
        else:
            assert found == names
    assert refused, "no damage was found"


def test_damage_found_while_the_journal_is_open_refuses_everything_from_then_on(tmp_path: Path) -> None:
    path, _ = _journal(tmp_path)
    store = open_store(f"sqlite:///{path}")
    store._database.engine.dispose()  # connections with cached content would go on without the file
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(CalabashError) as first:
        store.grant(_record("fresh"))
    assert first.value.reason is Reason.STORE_DAMAGED
    with pytest.raises(CalabashError) as second:
        store.allocations()
    assert second.value.message == first.value.message
    store.close()
