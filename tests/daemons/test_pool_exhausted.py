"""Pool without free descriptors or disk space: it reports this, loses nothing, and recovers."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from tests.api_client import PathClient
from tests.daemons.users import ANN, as_user, open_way
from tests.daemons.world import World, until

from calabash.model.errors import CalabashError, Reason

SMALL = {"memory_mib": 16, "cores": 1, "policy": "best-effort"}
# Allowed messages of a pool that cannot open anything, each with status 5xx.
HONEST = {Reason.OVERLOADED, Reason.STORE_UNAVAILABLE, Reason.DISK_FULL, Reason.HOST_FAILED, Reason.POOL_DOWN}
SPARE = (0, 1, 3, 6, 10)  # descriptors that may still be opened


@contextmanager
def _descriptors_left(pid: int, spare: int) -> Iterator[None]:
    """Limit a process to ``spare`` more file descriptors than it has open, while the context lasts."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    numbers = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    free = (number for number in range(max(numbers) + spare + 2) if number not in numbers)
    end = [next(free) for _ in range(spare + 1)][-1]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (end, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def _asked(pool: PathClient, **wanted: object) -> str:
    """Return "granted", or the reason of the refusal; release a grant as soon as possible."""
    try:
        granted = pool.post("/v1/allocations", {**SMALL, **wanted}, timeout_s=30)
    except CalabashError as error:
        return str(error.reason)

    def gone() -> bool:
        try:
            pool.delete(f"/v1/allocations/{granted['id']}?force=1", timeout_s=30)
        except CalabashError as error:
            return error.reason is Reason.NOT_FOUND
        return True

    until(gone, what="the slice to be given back")
    return "granted"


def _serves(world: World) -> bool:
    try:
        return _asked(world.client) == "granted"
    except CalabashError:
        return False


@pytest.mark.parametrize("spare", SPARE)
def test_a_pool_without_free_descriptors_refuses_as_overloaded_and_loses_nothing(
    make_world: Callable[..., World], spare: int
) -> None:
    world = make_world("1xA100-40GB")
    pid = int(world.up()["pid"])
    program, held = world.running(memory_mib=1024, cores=10)
    told = []
    with _descriptors_left(pid, spare):
        for _ in range(3):
            try:
                granted = world.client.post("/v1/allocations", SMALL, timeout_s=10)
            except CalabashError as error:
                told.append(error.reason)
            else:
                told.append(granted["id"])
    assert {reason for reason in told if isinstance(reason, Reason)} <= HONEST, told
    until(partial(_serves, world), what="the pool to grant again")
    assert program.alive()
    kept = next(a for a in world.allocations() if a["id"] == held["id"])
    assert (kept["state"], kept["pids"]) == ("running", [program.pid])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as another user")
def test_user_whose_name_cannot_be_looked_up_is_not_taken_for_a_stranger(make_world: Callable[..., World]) -> None:
    """The name service reports an unknown user if it has no descriptors; the pool must not believe or cache that."""
    world = make_world("1xA100-40GB")
    pid = int(world.up()["pid"])
    open_way(world.home)
    world.client.put("/v1/tenants/vision", {"users": [ANN.name]})
    seen = []
    for spare in SPARE:
        with _descriptors_left(pid, spare):
            seen.append(as_user(ANN, lambda: _asked_once(world)))
    assert set(seen) <= {"granted", *map(str, HONEST)}, seen
    until(partial(_serves, world), what="the pool to grant again")
    assert as_user(ANN, lambda: _asked(world.client, tenant="vision")) == "granted"


def _asked_once(world: World) -> str:
    try:
        world.client.post("/v1/allocations", {**SMALL, "tenant": "vision"}, timeout_s=10)
    except CalabashError as error:
        return str(error.reason)
    return "granted"
