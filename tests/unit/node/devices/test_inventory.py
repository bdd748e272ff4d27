"""Inventory: readings, driver events, partitions of cards, and state kept over a restart."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from calabash.adapters.gpu.past_faults import PastFault
from calabash.adapters.gpu.protocol import DeviceEvent, EventKind, GpuDriver
from calabash.model.device import Device, DeviceProcess, DeviceReading, DeviceUuid, Health, Slowdown
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import in_full
from calabash.node.devices.device import HealthChange
from calabash.node.devices.inventory import Inventory
from calabash.node.devices.probe import ProbeResult
from calabash.node.devices.recovery import Recovery
from calabash.node.health.conditions import HealthEvent, HealthStep, Need
from calabash.node.health.policy import FaultClass, HealthPolicy, LinkRules, MemoryRules, RecoveryRules, ThrottleRules
from calabash.node.health.store import HealthStore

ONE, TWO = DeviceUuid("GPU-1"), DeviceUuid("GPU-2")


class Clock:
    """Clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.at_s = 1000.0
        self.set_s = 0.0  # total change of the calendar

    def now_s(self) -> float:
        return self.at_s + self.set_s

    def monotonic_ns(self) -> int:
        return int(self.at_s * 1e9)


class Cards:
    """Two cards that answer as set by the test."""

    vendor = "nvidia"

    def __init__(self, *, joined: bool = False) -> None:
        self.readings: dict[DeviceUuid, DeviceReading | CalabashError] = {
            uuid: DeviceReading(uuid=uuid, memory_used_mib=0, utilization_percent=0, temperature_c=40, power_w=50.0)
            for uuid in (ONE, TWO)
        }
        self.hanging: threading.Event | None = None
        self.joined = joined
        self.resets: list[DeviceUuid] = []
        self.asked: list[DeviceUuid] = []
        self.listed: tuple[DeviceProcess, ...] = ()

    def devices(self) -> tuple[Device, ...]:
        peers = {ONE: (TWO,), TWO: (ONE,)} if self.joined else {ONE: (), TWO: ()}
        return tuple(
            Device(
                uuid=uuid, index=0, vendor="nvidia", model="T4", memory_mib=16_000, reset_peers=cast("Any", peers[uuid])
            )
            for uuid in (ONE, TWO)
        )

    def read(self, uuid: DeviceUuid) -> DeviceReading:
        if uuid == ONE and self.hanging is not None:
            self.hanging.wait(60)
        found = self.readings[uuid]
        if isinstance(found, CalabashError):
            raise found
        return found

    def reset(self, uuid: DeviceUuid) -> None:
        self.resets.append(uuid)

    def processes(self, uuid: DeviceUuid) -> tuple[DeviceProcess, ...]:
        self.asked.append(uuid)
        return self.listed

    def says(self, uuid: DeviceUuid, **fields: Any) -> None:
        found = self.readings[uuid]
        assert isinstance(found, DeviceReading)
        self.readings[uuid] = replace(found, **fields)


class Node:
    """An inventory of such cards, its recovery, and the users of the cards."""

    def __init__(self, *, policy: HealthPolicy | None = None, home: Path | None = None, joined: bool = False) -> None:
        self.cards = Cards(joined=joined)
        self.clock = Clock()
        self.home = home
        self.boot = "first"
        self.policy = policy
        self.users: dict[DeviceUuid, str] = {}
        self.test = ProbeResult(passed=True, figures={"kernel": 10.0})
        self.begin()

    def begin(self) -> None:
        """A pool starts."""
        self.inventory = Inventory(
            [cast("Any", self.cards)],
            policy=self.policy,
            store=HealthStore(self.home, boot=self.boot),
            clock=cast("Any", self.clock),
        )
        self.recovery = Recovery(self.inventory, cast("Any", self.clock), self)

    def probe(self, driver: GpuDriver, device: Device) -> ProbeResult:
        return self.test

    def in_use(self, device: DeviceUuid) -> str:
        return self.users.get(device, "")

    def notify(self, changes: Sequence[HealthChange]) -> None:
        pass

    def observe(self) -> list[str]:
        changes = self.inventory.observe(idle=lambda uuid: uuid not in self.users)
        return [f"{c.before} -> {c.after}: {c.cause}" for c in changes]

    def xid(self, code: int, *, part: str = "") -> None:
        self.inventory.health.reported(DeviceEvent(uuid=ONE, kind=EventKind.XID, code=code, part=part))

    def health(self, uuid: DeviceUuid = ONE) -> Health:
        return next(d.health for d in self.inventory.devices() if d.uuid == uuid)

    def recover(self, rounds: int = 3) -> Health:
        """Let time pass until every possible recovery step has been taken."""
        for _ in range(rounds):
            self.clock.at_s += 60
            self.observe()
            self.recovery.round()
        return self.health()


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def hanging(node: Node) -> Iterator[Node]:
    """A node whose first card does not answer any more."""
    node.cards.hanging = threading.Event()
    yield node
    node.cards.hanging.set()


def test_hanging_card_is_lost_at_the_second_reading_and_others_are_read(hanging: Node) -> None:
    hanging.cards.says(TWO, temperature_c=77)
    assert [told.partition(":")[0] for told in hanging.observe()] == ["healthy -> suspect"]
    hanging.observe()
    assert (hanging.health(), hanging.health(TWO)) == (Health.LOST, Health.HEALTHY)
    found = hanging.inventory.reading(TWO)
    assert found is not None
    assert found.temperature_c == 77


def test_card_in_use_is_reset_when_idle_and_tested_before_it_is_healthy(node: Node) -> None:
    node.users[ONE] = "a1"
    node.xid(48)
    assert node.recover() is Health.DRAINING
    assert node.cards.resets == []
    del node.users[ONE]
    assert node.recover() is Health.HEALTHY
    assert node.cards.resets == [ONE]


def test_card_that_fails_its_test_is_not_allocated(node: Node) -> None:
    node.test = ProbeResult(passed=False, why="a kernel has computed something else than it should")
    node.xid(48)
    assert node.recover() is Health.RECOVERING
    node.test = ProbeResult(passed=True)
    assert node.recover() is Health.HEALTHY


def test_card_that_has_become_slow_fails_its_test(node: Node) -> None:
    node.recovery.test(ONE)
    node.test = ProbeResult(passed=True, figures={"kernel": 45.0})
    slow = node.recovery.test(ONE)
    assert not slow.passed
    assert "4.5 times its own 10 us" in slow.why
    assert node.inventory.health.entry(ONE).figures == {"kernel": 10.0}


def test_card_waits_for_an_administrator_if_resets_are_disabled() -> None:
    node = Node(policy=HealthPolicy(recovery=RecoveryRules(reset=False)))
    node.xid(48)
    assert node.recover() is Health.RECOVERING
    assert node.cards.resets == []
    assert node.inventory.steps.due(node.clock.monotonic_ns()) == []
    node.inventory.health.happened(ONE, HealthEvent.UNDRAIN, "by hand")
    assert node.recover() is Health.HEALTHY


def test_card_whose_reset_is_refused_drains_and_is_retried() -> None:
    node = Node(joined=True)
    node.users[TWO] = "a2"
    node.xid(48)
    node.observe()
    node.recovery.round()
    assert node.health() is Health.DRAINING
    assert "used by a2" in in_full(node.inventory.health.cause(ONE))
    assert node.inventory.steps.due(node.clock.monotonic_ns()) == []
    del node.users[TWO]
    assert node.recover() is Health.HEALTHY


def test_reserved_card_refuses_other_operations(node: Node) -> None:
    with node.inventory.steps.reserved([ONE], "being tested"):
        assert node.health() is Health.RECOVERING
        with pytest.raises(CalabashError) as refused:
            node.recovery.reset(ONE)
        assert refused.value.reason is Reason.CONFLICT
    assert node.health() is Health.HEALTHY


@pytest.mark.parametrize(
    ("fields", "policy", "state", "cause"),
    [
        ({"ecc_uncorrected": 1}, HealthPolicy(), Health.DRAINING, "1 uncorrected"),
        ({"ecc_uncorrected": 1}, HealthPolicy(memory=MemoryRules(uncorrected=2)), Health.HEALTHY, ""),
        ({"ecc_uncorrected": 1}, HealthPolicy(memory=MemoryRules(uncorrected=0)), Health.HEALTHY, ""),
        ({"row_remap_pending": True}, HealthPolicy(), Health.DRAINING, "remapped at the next reset"),
        (
            {"row_remap_pending": True},
            HealthPolicy(memory=MemoryRules(row_remap_pending=FaultClass.IGNORE)),
            Health.HEALTHY,
            "",
        ),
        ({"row_remap_failed": True}, HealthPolicy(), Health.LOST, "could not be remapped"),
        ({"retired_pages_pending": True}, HealthPolicy(), Health.DRAINING, "retired at the next reset"),
        ({"throttled": (Slowdown.THERMAL,)}, HealthPolicy(), Health.SUSPECT, "heat"),
        ({"throttled": (Slowdown.POWER_BRAKE,)}, HealthPolicy(), Health.SUSPECT, "power supply"),
        ({"throttled": (Slowdown.POWER_CAP,)}, HealthPolicy(), Health.HEALTHY, ""),
        (
            {"throttled": (Slowdown.POWER_CAP,)},
            HealthPolicy(throttling=ThrottleRules(power_cap_s=1)),
            Health.SUSPECT,
            "power limit",
        ),
        ({"nvlinks_up": 3}, HealthPolicy(), Health.SUSPECT, "1 of 4"),
        ({"nvlinks_up": 3}, HealthPolicy(nvlink=LinkRules(down=FaultClass.RESET)), Health.DRAINING, "1 of 4"),
    ],
)
def test_reading_is_classified_by_the_policy(
    fields: dict[str, Any], policy: HealthPolicy, state: Health, cause: str
) -> None:
    node = Node(policy=policy)
    node.users[ONE] = "a1"
    node.cards.says(ONE, nvlinks_up=4)
    node.observe()
    node.cards.says(ONE, **fields)
    node.observe()
    node.clock.at_s += 2
    node.observe()
    assert node.health() is state
    assert cause in in_full(node.inventory.health.cause(ONE))
    assert node.health(TWO) is Health.HEALTHY


def test_short_slowdown_does_not_change_health(node: Node) -> None:
    for throttled in ((Slowdown.THERMAL,), (), (Slowdown.THERMAL,)):
        node.cards.says(ONE, throttled=throttled)
        assert node.observe() == []
        node.clock.at_s += 2


def test_card_reset_by_another_program_is_tested_and_recovers(node: Node) -> None:
    node.cards.says(ONE, ecc_uncorrected=3)
    node.users[ONE] = "a1"
    node.observe()
    assert node.health() is Health.DRAINING
    node.cards.says(ONE, ecc_uncorrected=0)
    node.observe()
    assert node.inventory.steps.due(node.clock.monotonic_ns()) == [(ONE, HealthStep.TEST)]
    assert node.cards.resets == []


def test_fault_of_a_partition_takes_only_that_partition_out_of_service(node: Node) -> None:
    node.xid(95, part="MIG-1")
    assert node.health() is Health.HEALTHY
    assert node.inventory.health.of_part(ONE, "MIG-1") is Health.DRAINING
    assert node.inventory.health.of_part(ONE, "MIG-2") is Health.HEALTHY
    assert node.recover() is Health.HEALTHY
    assert node.cards.resets == []
    for event in (HealthEvent.IDLE, HealthEvent.RESET_DONE, HealthEvent.TEST_PASSED):
        node.inventory.health.part_happened(ONE, "MIG-1", event, "made anew")
    assert node.inventory.health.of_part(ONE, "MIG-1") is Health.HEALTHY


def test_partition_that_fails_again_has_a_hold_time(node: Node) -> None:
    for _ in range(2):
        for event in (HealthEvent.NEEDS_RESET, HealthEvent.IDLE, HealthEvent.RESET_DONE, HealthEvent.TEST_PASSED):
            node.inventory.health.part_happened(ONE, "mps", event, "its daemon died and runs again")
    assert node.inventory.health.of_part(ONE, "mps") is Health.RECOVERING
    node.observe()
    assert node.inventory.health.of_part(ONE, "mps") is Health.RECOVERING
    node.clock.at_s += 11
    node.observe()
    assert node.inventory.health.of_part(ONE, "mps") is Health.HEALTHY


def test_card_with_an_unhealthy_service_takes_no_new_work_and_stays_healthy(node: Node) -> None:
    def shown() -> Health:
        return next(d.health for d in node.inventory.devices() if d.uuid == ONE)

    node.inventory.health.part_happened(ONE, "mps", HealthEvent.NEEDS_RESET, "the MPS daemon died")
    assert shown() is Health.SUSPECT
    assert node.inventory.health.cause(ONE) == "mps is draining"
    assert node.inventory.steps.due(node.clock.monotonic_ns()) == []
    for event in (HealthEvent.RESET_DONE, HealthEvent.TEST_PASSED):
        node.inventory.health.part_happened(ONE, "mps", event, "it serves again")
    assert shown() is Health.HEALTHY
    node.inventory.health.part_happened(ONE, "MIG-1", HealthEvent.NEEDS_RESET, "XID 95")
    assert shown() is Health.HEALTHY


def test_program_fault_on_a_partition_is_reported_without_a_change(node: Node) -> None:
    changes = node.inventory.health.reported(DeviceEvent(uuid=ONE, kind=EventKind.XID, code=31, part="MIG-1"))
    assert [(c.part, c.after, c.notify_tenants) for c in changes] == [("MIG-1", Health.HEALTHY, False)]


def test_memory_errors_of_a_mig_card_count_for_its_partitions(node: Node) -> None:
    node.inventory.divisions.set(ONE, enabled=True, instances=(), parts=())
    node.cards.says(ONE, ecc_uncorrected=1)
    node.observe()
    assert node.inventory.health.reported(DeviceEvent(uuid=ONE, kind=EventKind.ECC_DOUBLE_BIT)) == []
    assert node.health() is Health.HEALTHY


def test_health_of_cards_and_partitions_survives_a_restart(tmp_path: Path) -> None:
    node = Node(home=tmp_path)
    node.users[ONE] = "a1"
    node.xid(48)
    node.inventory.health.part_happened(TWO, "mps", HealthEvent.NEEDS_RESET, "its daemon has died")
    node.begin()
    assert (node.health(), node.inventory.health.cause(ONE)) == (Health.DRAINING, "XID 48")
    assert node.inventory.health.of_part(TWO, "mps") is Health.DRAINING
    assert [h.cause for h in node.inventory.health.entry(ONE).history] == ["XID 48"]


def test_restart_of_the_machine_counts_as_a_reset(tmp_path: Path) -> None:
    node = Node(home=tmp_path, policy=HealthPolicy(recovery=RecoveryRules(reset=False)))
    node.xid(48)
    node.inventory.health.happened(TWO, HealthEvent.NEEDS_REPLACE, "XID 54")
    node.boot = "second"
    node.begin()
    assert node.recover() is Health.HEALTHY
    assert node.health(TWO) is Health.LOST


def test_memory_errors_while_no_pool_ran_count(tmp_path: Path) -> None:
    node = Node(home=tmp_path)
    node.inventory.health.happened(ONE, HealthEvent.DRAIN, "by hand")
    node.inventory.health.happened(ONE, HealthEvent.UNDRAIN, "by hand")
    assert node.recover() is Health.HEALTHY
    node.cards.says(ONE, ecc_uncorrected=2)
    node.begin()
    assert node.inventory.health.entry(ONE).condition.need is Need.RESET


def test_damaged_health_file_requires_a_test_of_every_card(tmp_path: Path) -> None:
    (tmp_path / "health.json").write_bytes(b'{"GPU-1": {"condition": 7}}')
    node = Node(home=tmp_path)
    assert (node.health(), node.health(TWO)) == (Health.RECOVERING, Health.RECOVERING)
    assert node.recover() is Health.HEALTHY
    assert (tmp_path / "health.damaged").exists()


def test_unwritable_health_file_does_not_stop_health_decisions(tmp_path: Path) -> None:
    node = Node(home=tmp_path / "gone")
    node.xid(54)
    assert node.health() is Health.LOST


def test_event_of_an_unknown_card_is_ignored(node: Node) -> None:
    for kind in EventKind:
        assert node.inventory.health.reported(DeviceEvent(uuid=DeviceUuid("GPU-9"), kind=kind, code=48)) == []


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_hold_time_is_unchanged_if_the_calendar_is_set(tmp_path: Path, jump_s: float) -> None:
    node = Node(home=tmp_path)
    node.xid(48)
    assert node.recover() is Health.HEALTHY
    node.xid(48)
    for _ in range(4):
        node.clock.at_s += 0.5
        node.observe()
        node.recovery.round()
    held_s = node.inventory.health.entry(ONE).condition.hold_until_s - node.inventory.health.steady.now_s()
    assert held_s > 0
    node.clock.set_s = jump_s
    node.begin()
    node.observe()
    assert node.health() is not Health.HEALTHY, "it has not stayed well for long enough"
    node.clock.at_s += held_s + 1
    node.observe()
    assert node.health() is Health.HEALTHY
    last = node.inventory.health.entry(ONE).history[-1]
    assert last.at == node.clock.now_s(), "what has happened is told by the calendar"


def test_reported_fault_is_not_repeated_if_the_calendar_is_set(tmp_path: Path) -> None:
    node = Node(home=tmp_path)
    fault = DeviceEvent(uuid=ONE, kind=EventKind.XID, code=48)
    happened_s = node.clock.at_s + 1
    node.clock.at_s += 2
    assert node.inventory.health.missed([PastFault(event=fault, at_s=happened_s)])
    assert node.recover() is Health.HEALTHY
    node.clock.set_s = 3600.0
    node.begin()
    assert node.inventory.health.missed([PastFault(event=fault, at_s=happened_s + 3600)]) == []
    assert node.health() is Health.HEALTHY


def test_recent_list_of_processes_is_used_again_within_its_age(node: Node) -> None:
    node.inventory.processes(ONE)
    node.clock.at_s += 0.1
    for within_ns in (200_000_000, 100_000_000, 50_000_000, 0):
        node.inventory.processes(ONE, within_ns=within_ns)
    assert node.cards.asked == [ONE] * 3


def test_card_is_unused_only_while_its_driver_lists_no_process(node: Node) -> None:
    assert not node.inventory.is_unused(ONE), "nobody has asked yet"
    node.cards.listed = (DeviceProcess(pid=1, used_bytes=1),)
    node.inventory.processes(ONE)
    node.cards.listed = ()
    node.inventory.processes(ONE)
    assert not node.inventory.is_unused(ONE), "a process was listed recently"
    for _ in range(3):
        node.clock.at_s += 0.9
        node.inventory.processes(ONE)
    assert node.inventory.is_unused(ONE)
    assert not node.inventory.is_unused(TWO)
    node.clock.at_s += 1.1
    assert not node.inventory.is_unused(ONE), "the last answer is old"
