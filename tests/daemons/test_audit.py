"""Audit log of a pool: changes by users and refusals are recorded, and changed lines are detected."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.users import EVE, as_user, open_way
from tests.daemons.world import World, until

from calabash.model.errors import CalabashError, Reason

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")


@pytest.fixture
def pool() -> Iterator[World]:
    directory = Path(tempfile.mkdtemp(prefix="calabash-"))
    world = World(directory / "home", "1xA100-40GB")
    world.up()
    open_way(world.home)
    yield world
    world.close()
    shutil.rmtree(directory)


def _lines(world: World) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = world.client.get("/v1/audit")["items"]
    return items


def test_changes_and_refusals_are_written_with_who_and_from_where(pool: World) -> None:
    pool.client.put("/v1/queues/prod", {"deserved": 1})

    def trespass() -> list[str]:
        told = []
        calls: list[Callable[[], Any]] = [
            lambda: pool.client.put("/v1/queues/mine", {}),
            lambda: pool.client.get("/v1/audit"),
        ]
        for call in calls:
            try:
                call()
            except CalabashError as error:
                told.append(str(error.reason))
        return told

    assert as_user(EVE, trespass) == [Reason.NOT_PERMITTED, Reason.NOT_PERMITTED]
    until(lambda: len(_lines(pool)) >= 3)
    changed, refused, looked = _lines(pool)[:3]
    assert (changed["action"], changed["target"], changed["outcome"]) == ("PUT", "/v1/queues/prod", 200)
    assert changed["origin"].startswith(f"uid 0 pid {os.getpid()}")
    assert (refused["user"], refused["target"], refused["outcome"]) == (EVE.name, "/v1/queues/mine", 403)
    assert refused["origin"].startswith(f"uid {EVE.uid} ")
    assert (looked["action"], looked["target"], looked["outcome"]) == ("GET", "/v1/audit", 403)


def test_slices_that_are_asked_for_and_a_log_that_was_changed_are_told(pool: World) -> None:
    program, allocation = pool.running(memory_mib=100)
    program.finish()
    until(lambda: any(line["target"] == "/v1/allocations" and line["outcome"] == 201 for line in _lines(pool)))
    assert allocation["id"]
    verdict = pool.client.get("/v1/audit/verify")
    assert verdict["whole"]
    with closing(sqlite3.connect(f"{pool.home}/pool.db")) as raw, raw:
        with pytest.raises(sqlite3.IntegrityError, match="a line of the audit log never changes"):
            raw.execute("UPDATE audit SET user = 'eve' WHERE id = 1")
        with pytest.raises(sqlite3.IntegrityError, match="a line of the audit log never changes"):
            raw.execute("DELETE FROM audit WHERE id = 1")
        raw.execute("DROP TRIGGER audit_no_update")
        raw.execute("UPDATE audit SET user = 'eve' WHERE id = 1")
    assert pool.client.get("/v1/audit/verify")["wrong"] == "line 1 was changed after it was written"
