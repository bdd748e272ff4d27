"""Leases of a broker: token limits, ends of leases, and restarts."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.broker.standins import BrokerWorld, MemoryPool

from calabash.broker.messages import LeaseGrant, LeaseOrder
from calabash.broker.server.broker import ServerSettings
from calabash.broker.server.lease_lifecycle import LeaseEvent
from calabash.broker.server.lease_table import HeldLease, LeaseTable
from calabash.broker.tokens import TokenClaims
from calabash.model.errors import CalabashError, Reason
from calabash.model.state_machine import UnlistedTransitionError

Scenario = Callable[[BrokerWorld], Coroutine[Any, Any, None]]


def play(tmp_path: Path, scenario: Scenario, *, cards: int = 2, on_revoke: str = "cut") -> BrokerWorld:
    """Run a scenario with a broker and return its world."""
    told: list[BrokerWorld] = []

    async def begin() -> None:
        settings = ServerSettings(name="lab01", grace_s=60, on_revoke="finish" if on_revoke == "finish" else "cut")
        world = BrokerWorld(tmp_path, MemoryPool(cards), settings=settings)
        await world.broker.begin()
        told.append(world)
        await scenario(world)

    asyncio.run(begin())
    return told[0]


async def lease(world: BrokerWorld, claims: TokenClaims, **order: Any) -> LeaseGrant:
    return await world.broker.lease(claims, LeaseOrder(**order), "10.0.0.9:1")


async def refused(world: BrokerWorld, claims: TokenClaims, **order: Any) -> CalabashError:
    with pytest.raises(CalabashError) as caught:
        await lease(world, claims, **order)
    return caught.value


def test_lease_is_a_brokered_allocation_accounted_to_its_token(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        granted = await lease(world, world.claims(), memory_mib=1024, cores=30, command=["python", "train.py"])
        (asked,) = world.pool.asked
        wanted = {
            "mode": "brokered",
            "standing": True,
            "tenant": "vision",
            "memory_mib": 1024,
            "cores": 30,
            "uuids": [],
        }
        assert {name: asked[name] for name in wanted} == wanted
        assert asked["command"][2:] == ["python", "train.py"]
        assert len(granted.key) == 64
        assert world.leases.session_target(granted.id, "0" * 32, "10.0.0.9:1") == ("/run/a1.sock", granted.key)

    play(tmp_path, scenario)


def test_token_limits_devices_and_memory_held_at_a_time(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        claims = world.claims(gpus=2, memory_mib=40960)
        granted = await lease(world, claims, memory_mib=30720)
        over = await refused(world, claims, memory_mib=10241)
        assert over.reason is Reason.QUEUE_OVER_LIMIT
        assert "allows 40GiB at a time, 30GiB are held" in over.message
        assert (await refused(world, claims, gpus=2, memory_mib=1)).reason is Reason.QUEUE_OVER_LIMIT
        await world.leases.end(world.leases.require_lease(claims, granted.id), why="given back")
        await lease(world, claims, memory_mib=10241)

    play(tmp_path, scenario, cards=8)


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"gpus": 3}, "2 GPUs, 3 requested"),
        ({"memory_mib": 40961}, "40GiB on all devices"),
        ({"cores": 51}, "50% of a device"),
    ],
)
def test_request_above_token_limits_is_refused_at_once(tmp_path: Path, order: dict[str, Any], said: str) -> None:
    async def scenario(world: BrokerWorld) -> None:
        why = await refused(world, world.claims(memory_mib=40960, cores=50), **{"cores": 10, **order})
        assert why.reason is Reason.TOO_LARGE
        assert said in why.message

    play(tmp_path, scenario, cards=8)


def test_request_in_progress_counts_against_the_token(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        claims = world.claims(gpus=1)
        world.pool.grants.clear()
        first = asyncio.create_task(lease(world, claims, wait_s=60))
        while not world.pool.asked:
            await asyncio.sleep(0)
        assert (await refused(world, claims)).reason is Reason.QUEUE_OVER_LIMIT
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        world.pool.grants.set()
        await lease(world, claims)

    play(tmp_path, scenario)


def test_filter_restricts_the_devices_requested_of_the_pool(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        claims = world.claims()
        await lease(world, claims, filters=["memory>=41GiB", "driver>=580"])
        assert world.pool.asked[0]["uuids"] == ["GPU-1"]
        none = await refused(world, claims, filters=["model~B200"])
        assert none.reason is Reason.SELECTOR_MISMATCH
        assert "0 of 2 devices of lab01 match (model~b200), 1 requested" in none.message
        assert "1 x NVIDIA H100" in none.hint

    play(tmp_path, scenario)


def test_lease_without_renewal_ends_after_the_grace_period(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        granted = await lease(world, world.claims())
        for _ in range(5):
            world.clock.s += 60 + 60 / 4  # a break of the whole grace, that began just before a renewal
            await world.broker.sweep()
            world.leases.renew(world.leases.require_lease(None, granted.id))
        assert len(world.pool.allocations) == 1
        world.clock.s += 91
        await world.broker.sweep()
        assert world.pool.allocations == {}
        assert world.leases.session_target(granted.id, "0" * 32, "x") is None

    assert '"why": "not renewed"' in play(tmp_path, scenario).audited()


def test_allocation_is_renewed_in_the_pool_before_it_expires(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        await lease(world, world.claims(), idle_s=86_400)
        assert world.pool.asked[0]["keep_s"] == world.leases.keep_s
        silent_s, heard = 0.0, 0
        for _ in range(100):
            world.clock.s += world.leases.keep_s / 20
            silent_s += world.leases.keep_s / 20
            await world.broker.sweep()
            if len(world.pool.kept) > heard:
                silent_s, heard = 0.0, len(world.pool.kept)
            assert silent_s <= world.leases.keep_s / 2
        assert set(world.pool.kept) == {"a1"}
        assert heard <= 25  # and not at every look

    play(tmp_path, scenario)


def test_reservation_survives_programs_until_it_is_idle(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        granted = await lease(world, world.claims(), idle_s=600)
        world.clock.s += 599
        assert world.leases.session_target(granted.id, "0" * 32, "x") is not None  # a program of it connects
        world.clock.s += 599
        await world.broker.sweep()
        assert len(world.pool.allocations) == 1
        world.clock.s += 2
        await world.broker.sweep()
        assert world.pool.allocations == {}

    play(tmp_path, scenario)


@pytest.mark.parametrize(("on_revoke", "left"), [("cut", 0), ("finish", 1)])
@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_on_revoke_setting_decides_if_leases_end_with_their_token(
    tmp_path: Path, how: str, on_revoke: str, left: int
) -> None:
    async def scenario(world: BrokerWorld) -> None:
        claims = world.claims()
        granted = await lease(world, claims)
        if how == "revoked":
            world.registry.revoke(claims.id, world.clock())
        else:
            world.clock.s = claims.expires
        world.leases.renew(world.leases.require_lease(claims, granted.id))
        await world.broker.sweep()
        assert len(world.pool.allocations) == left

    play(tmp_path, scenario, on_revoke=on_revoke)


def test_restarted_broker_restores_leases_and_releases_unjournalled_allocations(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        claims = world.claims(gpus=4)
        kept, gone = await lease(world, claims), await lease(world, claims, idle_s=600)
        world.pool.allocations.pop("a2")  # the pool has taken it back meanwhile
        world.pool.allocations["lost"] = {**world.pool.allocations["a1"], "id": "lost"}
        world.pool.allocations["other"] = {**world.pool.allocations["a1"], "id": "other", "command": ["python"]}
        world.again()
        await world.broker.begin()
        assert [held.id for held in world.leases] == [kept.id]
        assert world.leases.session_target(kept.id, "0" * 32, "x") == ("/run/a1.sock", kept.key)
        assert world.leases.session_target(gone.id, "0" * 32, "x") is None
        assert sorted(world.pool.allocations) == ["a1", "other"]

    play(tmp_path, scenario, cards=8)


def test_leases_stay_and_new_ones_are_refused_while_the_pool_is_down(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        claims = world.claims()
        granted = await lease(world, claims)
        world.pool.away = True
        await world.broker.sweep()
        assert world.leases.session_target(granted.id, "0" * 32, "x") is not None
        assert (await refused(world, claims)).reason is Reason.POOL_DOWN

    play(tmp_path, scenario)


def test_unreleased_allocation_is_released_when_the_pool_returns(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        claims = world.claims()
        granted = await lease(world, claims)
        world.pool.away = True
        await world.leases.end(world.leases.require_lease(claims, granted.id), why="given back")
        world.pool.away = False
        assert len(world.pool.allocations) == 1
        await world.broker.sweep()
        assert world.pool.allocations == {}

    play(tmp_path, scenario)


def test_lease_ending_on_a_full_disk_releases_its_devices(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        claims = world.claims()
        granted = await lease(world, claims)

        async def full() -> None:
            raise CalabashError("the disk is full", reason=Reason.DISK_FULL)

        world.leases.save = full  # type: ignore[method-assign]
        with pytest.raises(CalabashError, match="the disk is full"):
            await world.leases.end(world.leases.require_lease(claims, granted.id), why="given back")
        assert world.pool.allocations == {}
        world.again()
        await world.broker.begin()
        assert list(world.leases) == []

    play(tmp_path, scenario)


def test_allocation_stays_to_be_released_until_the_pool_no_longer_has_it(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        claims = world.claims()
        granted = await lease(world, claims)
        world.pool.away = True
        await world.leases.end(world.leases.require_lease(claims, granted.id), why="given back")
        world.pool.away = False
        (allocation,) = world.pool.allocations.values()
        allocation["state"] = "ending"
        await world.broker.sweep()
        assert world.leases.table.releasing == {granted.id: allocation["id"]}
        world.pool.allocations.clear()
        await world.broker.sweep()
        assert world.leases.table.releasing == {}

    play(tmp_path, scenario)


def test_server_releases_remaining_allocations_at_shutdown(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        claims = world.claims()
        granted = await lease(world, claims)
        world.pool.away = True
        await world.leases.end(world.leases.require_lease(claims, granted.id), why="given back")
        world.pool.away = False
        await world.leases.release_remaining()
        assert world.pool.allocations == {}

    play(tmp_path, scenario)


def test_lease_ends_when_the_pool_ends_its_allocation(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        granted = await lease(world, world.claims())
        world.pool.allocations.clear()
        await world.broker.sweep()
        assert world.leases.session_target(granted.id, "0" * 32, "x") is None

    assert "taken back by the pool" in play(tmp_path, scenario).audited()


def test_lease_that_its_holder_releases_during_a_sweep_ends_once(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        claims = world.claims(gpus=4)
        await lease(world, claims)
        second = world.leases.require_lease(claims, (await lease(world, claims)).id)
        world.pool.allocations.pop(second.allocation)
        ask = world.pool.call

        async def while_released(method: str, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any:
            if path.endswith("/keep"):
                await world.leases.end(second, why="given back")
            return await ask(method, path, body, timeout_s=timeout_s)

        world.pool.call = while_released  # type: ignore[method-assign]
        await world.broker.sweep()

    lines = play(tmp_path, scenario, cards=8).audited()
    assert (lines.count("lease ended"), lines.count("given back")) == (1, 1)


def test_lease_granted_during_a_sweep_is_not_taken_for_ended(
    tmp_path: Path,
) -> None:
    async def scenario(world: BrokerWorld) -> None:
        claims = world.claims(gpus=4)
        first = await lease(world, claims)
        ask, later = world.pool.call, []

        async def slowly(method: str, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any:
            answer = await ask(method, path, body, timeout_s=timeout_s)
            if (method, path) == ("GET", "/v1/allocations"):
                later.append(await lease(world, claims))
            return answer

        world.pool.call = slowly  # type: ignore[method-assign]
        await world.broker.sweep()
        world.pool.call = ask  # type: ignore[method-assign]
        assert [held.id for held in world.leases] == [first.id, *(one.id for one in later)]
        assert later

    assert "taken back by the pool" not in play(tmp_path, scenario, cards=8).audited()


def test_drained_server_refuses_leases_also_after_a_restart(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        claims = world.claims()
        granted = await lease(world, claims)
        await world.broker.drain(True)
        world.again()
        await world.broker.begin()
        assert (await refused(world, claims)).reason is Reason.DRAINED
        assert world.leases.session_target(granted.id, "0" * 32, "x") is not None
        await world.broker.drain(False)
        await lease(world, claims)

    play(tmp_path, scenario)


def test_leases_of_other_tokens_are_not_found(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        granted = await lease(world, world.claims("vision"))
        other = world.claims("audio")
        with pytest.raises(CalabashError, match="no lease"):
            world.leases.require_lease(other, granted.id)
        assert world.leases.views(other).items == []
        assert [view.id for view in world.leases.views(None).items] == [granted.id]

    play(tmp_path, scenario)


def test_audit_log_records_lease_events_without_secrets(tmp_path: Path) -> None:
    keys: list[str] = []

    async def scenario(world: BrokerWorld) -> None:
        granted = await lease(world, world.claims(), command=["./a.out"])
        keys.append(granted.key)
        world.leases.session_target(granted.id, "0" * 32, "10.0.0.9:2")
        await world.leases.end(world.leases.require_lease(None, granted.id), why="given back", peer="10.0.0.9:3")
        assert granted.key not in repr(granted)
        assert granted.key not in world.broker.metrics()

    world = play(tmp_path, scenario)
    lines = world.audited()
    assert [word in lines for word in ("lease granted", "10.0.0.9:2", "given back", "./a.out", '"vision"')] == [
        True
    ] * 5
    assert keys[0] not in lines
    assert stat.S_IMODE((tmp_path / "audit.log").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "leases.json").stat().st_mode) == 0o600


def test_metrics_count_leases_and_their_ends(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        claims = world.claims(gpus=4)
        await lease(world, claims)
        await lease(world, claims, idle_s=600)
        world.clock.s += 91
        await world.broker.sweep()
        text = world.broker.metrics()
        assert "calabash_remote_leases_total 2\n" in text
        assert 'calabash_remote_lease_ends_total{why="not renewed"} 1\n' in text
        assert 'calabash_remote_leases{token="vision"} 1\n' in text

    play(tmp_path, scenario, cards=8)


# -- the table ------------------------------------------------------------------------------------------------------

STEPS = ["request", "grant", "refuse", "abandon", "abandon_unknown", "end", "take_back", "release", "release_again"]
steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 4), st.integers(1, 50)), max_size=40)


@given(steps)
def test_table_counts_requests_and_leases_within_the_limits_and_keeps_what_is_not_released(
    scenario: list[tuple[str, int, int]],
) -> None:
    claims = TokenClaims(
        server="0" * 16, key="0" * 16, id="1" * 16, name="a", gpus=6, memory_mib=100, cores=100, issued=0, expires=9
    )
    table = LeaseTable()
    asked: dict[str, tuple[int, int]] = {}
    releasing: dict[str, str] = {}
    for number, (step, gpus, memory_mib) in enumerate(scenario):
        name = str(number)
        first, held = next(iter(asked), ""), next(iter(table), None)
        match step:
            case "request":
                try:
                    table.request(name, claims, gpus=gpus, memory_mib=memory_mib, cores=1)
                    asked[name] = (gpus, memory_mib)
                except CalabashError as error:
                    assert error.hint  # noqa: PT017 - it may be refused or not
            case "grant" if first:
                table.grant(_held(first, *asked.pop(first)), 0.0)
            case "refuse" if first:
                del asked[first]
                table.refuse(first)
            case "abandon" if first:
                del asked[first]
                table.abandon(first, f"a{first}")
                releasing[first] = f"a{first}"
            case "abandon_unknown":
                by_allocation = {allocation: lease for lease, allocation in releasing.items()}
                unknown = next(iter(by_allocation), "u1") if memory_mib % 2 else f"u{gpus}"
                found = table.abandon_unknown(unknown)
                assert found == by_allocation.get(unknown, unknown)
                releasing[found] = unknown
            case "end" if held is not None:
                table.end(held.id)
                releasing[held.id] = held.allocation
            case "take_back" if held is not None:
                table.end(held.id, LeaseEvent.TAKEN_BACK)
            case "release" if releasing:
                table.released(releasing.popitem()[0])
            case "release_again":
                table.released("z")
        gpus_held, mib_held = table.held(claims.id)
        assert gpus_held == sum(gpus for gpus, _ in asked.values()) + sum(held.gpus for held in table) <= 6
        assert mib_held == sum(mib for _, mib in asked.values()) + sum(held.memory_mib for held in table) <= 100
        assert (table.requested, table.releasing) == ([*asked], releasing)


def test_event_that_the_stage_of_a_lease_does_not_have_is_refused() -> None:
    table = LeaseTable([_held("1", 1, 1)])
    for event in (LeaseEvent.GRANTED, LeaseEvent.REFUSED, LeaseEvent.RELEASED):
        with pytest.raises(UnlistedTransitionError, match="lease 1: no transition from stage held"):
            table.end("1", event)
    assert [held.id for held in table] == ["1"]


def _held(name: str, gpus: int, memory_mib: int) -> HeldLease:
    return HeldLease(
        id=name,
        key="",
        token="1" * 16,
        name="a",
        allocation=name,
        socket="",
        gpus=gpus,
        memory_mib=memory_mib,
        cores=1,
        devices=[],
        command=[],
        made_at=0.0,
        hold_s=60.0,
        expires=9.0,
    )


def test_token_sees_the_leases_and_the_name_of_no_other_token(tmp_path: Path) -> None:
    async def scenario(world: BrokerWorld) -> None:
        mine, other = world.claims("vision"), world.claims("speech")
        own = await lease(world, mine, memory_mib=1024, cores=10)
        foreign = await lease(world, other, memory_mib=1024, cores=10)
        seen = await world.broker.view(mine)
        assert [name for card in seen.cards for name in card.leases] == [own.id]
        assert seen.leases == 2
        every = await world.broker.view()
        assert {name for card in every.cards for name in card.leases} == {own.id, foreign.id}
        assert "speech" not in world.broker.metrics(mine)
        assert "speech" in world.broker.metrics()

    play(tmp_path, scenario)
