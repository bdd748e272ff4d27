"""Container membership: containers are found by the pod's UID and by the slot mounted in them, and by nothing else."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from calabash.adapters.host.calendar_steps import CalendarSteps
from calabash.adapters.host.cgroups.container_groups import ContainerHierarchy, find_container_hierarchy, pod_groups
from calabash.adapters.host.cgroups.groups import Cgroup, find_hierarchy
from calabash.adapters.host.mounts import Mounted
from calabash.adapters.host.processes import identify
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.membership import container as membership_container
from calabash.node.membership.container import ContainerMembership, claim_allocation, container_allocation
from calabash.node.slots.names import is_slot_name

UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
DIGITS = UID.replace("-", "")
OTHER = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
CLAIM = "11111111-2222-3333-4444-555555555555"


class Node:
    """A hierarchy of plain directories, slots with device numbers, and sleeping processes in the role of containers."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.hierarchy = ContainerHierarchy(directory=root / "freezer", controller="freezer")
        self.slots = root / "alloc"
        self.slots.mkdir()
        self.devices: dict[AllocationId, int] = {}
        self.mounted: dict[int, frozenset[int]] = {}
        self.names: dict[int, str] = {}
        self.started: list[subprocess.Popen[bytes]] = []
        patch.setattr(membership_container, "mounted_devices", lambda pid: self.mounted.get(pid, frozenset()))
        patch.setattr(membership_container, "group_names", lambda pid, _: self.names.get(pid, ""))
        self.now_s = 0.0
        self.users: dict[AllocationId, set[str]] = {}
        self.membership = ContainerMembership(
            self.hierarchy, self.slots, users=self.users.get, now_s=lambda: self.now_s
        )
        patch.setattr(self.membership, "_device", self.devices.get)
        patch.setattr(self.membership, "_devices", lambda: dict(self.devices))

    def slot(self, uid: str, container: str) -> AllocationId:
        name = container_allocation(uid, container)
        self.devices[name] = 100 + len(self.devices)
        return name

    def claim(self) -> AllocationId:
        name = claim_allocation(CLAIM)
        self.devices[name] = 100 + len(self.devices)
        return name

    def container(self, pod: str, identifier: str, slot: AllocationId | None = None) -> subprocess.Popen[bytes]:
        group = self.hierarchy.directory / "kubetest" / "kubepods" / "burstable" / f"pod{pod}" / identifier
        group.mkdir(parents=True)
        process = subprocess.Popen(["sleep", "60"])
        self.started.append(process)
        (group / "cgroup.procs").write_text(f"{process.pid}\n")
        self.names[process.pid] = f"/kubetest/kubepods/burstable/pod{pod}/{identifier}"
        self.mounted[process.pid] = frozenset({1} if slot is None else {1, self.devices[slot]})
        return process


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(tmp_path, monkeypatch)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


def test_members_are_the_processes_of_the_container_in_which_the_slot_is_mounted(node: Node) -> None:
    main, other = node.slot(UID, "main"), node.slot(UID, "other")
    node.container(UID, "sandbox")
    first, second = node.container(UID, "aaaa", main), node.container(UID, "bbbb", other)
    assert node.membership.processes(main) == [identify(first.pid)]
    assert node.membership.processes(other) == [identify(second.pid)]
    assert node.membership.allocation_of(second.pid) == other
    assert node.membership.populated(main)


def test_restarted_container_is_found_in_its_new_group(node: Node) -> None:
    main = node.slot(UID, "main")
    before = node.container(UID, "aaaa", main)
    assert node.membership.populated(main)
    before.kill()
    before.wait()
    assert not node.membership.populated(main)
    group = node.hierarchy.directory / "kubetest" / "kubepods" / "burstable" / f"pod{UID}" / "aaaa"
    (group / "cgroup.procs").unlink()
    group.rmdir()
    after = node.container(UID, "cccc", main)
    assert node.membership.processes(main) == [identify(after.pid)]


def test_groups_are_walked_rarely_for_a_pod_without_group_but_always_before_a_release(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks: list[float] = []

    def counted(hierarchy: ContainerHierarchy) -> dict[str, Path]:
        walks.append(node.now_s)
        return pod_groups(hierarchy)

    monkeypatch.setattr(membership_container, "pod_groups", counted)
    main = node.slot(UID, "main")
    for _ in range(100):
        node.now_s += 0.1
        assert not node.membership.populated(main)
    assert len(walks) <= 21
    node.container(UID, "aaaa", main)
    assert not node.membership.remove(main)
    node.now_s += 1
    assert node.membership.populated(main)


def test_same_container_name_in_two_pods_is_two_allocations(node: Node) -> None:
    ours, theirs = node.slot(UID, "main"), node.slot(OTHER, "main")
    assert ours != theirs
    process = node.container(OTHER, "aaaa", theirs)
    assert not node.membership.populated(ours)
    assert node.membership.allocation_of(process.pid) == theirs


def test_group_created_in_a_container_does_not_match_another_allocation(node: Node) -> None:
    main, other = node.slot(UID, "main"), node.slot(OTHER, "main")
    victim = node.container(OTHER, "victim", other)
    liar = node.container(UID, "liar", main)
    assert node.membership.populated(main)
    assert node.membership.populated(other)
    node.names[liar.pid] += "/nested/victim"
    assert node.membership.allocation_of(liar.pid) == main
    assert node.membership.allocation_of(victim.pid) == other


def test_pod_runs_since_the_start_of_its_oldest_process(node: Node) -> None:
    assert node.membership.sandbox_since_s(UID) == 0.0
    node.now_s += 1
    before_s = time.time()
    first = node.container(UID, "sandbox")
    second = node.container(UID, "aaaa")
    since_s = node.membership.sandbox_since_s(UID)
    assert abs(since_s - before_s) < 5
    first.kill()
    first.wait()
    assert since_s <= node.membership.sandbox_since_s(UID)
    second.kill()
    second.wait()
    assert node.membership.sandbox_since_s(UID) == 0.0


def test_process_outside_of_pods_is_no_member(node: Node) -> None:
    node.slot(UID, "main")
    assert node.membership.allocation_of(os.getpid()) is None


def test_signal_reaches_member_processes_only(node: Node) -> None:
    main, other = node.slot(UID, "main"), node.slot(UID, "other")
    first, second = node.container(UID, "aaaa", main), node.container(UID, "bbbb", other)
    node.membership.kill(main)
    assert first.wait(60) == -signal.SIGKILL
    assert second.poll() is None
    assert node.membership.remove(main)
    assert not node.membership.remove(other)


def test_worker_is_a_member_in_a_group_beside_the_containers_of_its_pod(node: Node) -> None:
    main, other = node.slot(UID, "main"), node.slot(UID, "other")
    sandbox, container = node.container(UID, "sandbox"), node.container(UID, "bbbb", other)
    served = node.container(UID, "aaaa")
    worker = subprocess.Popen(["sleep", "60"])
    node.started.append(worker)
    pod = node.hierarchy.directory / "kubetest" / "kubepods" / "burstable" / f"pod{UID}"
    (pod / f"calabash-{main}").mkdir()
    (pod / f"calabash-{main}" / "cgroup.procs").touch()
    process = identify(worker.pid)
    assert process is not None
    node.membership.enter(main, process)
    assert node.membership.processes(main) == [process]
    node.names[worker.pid] = f"/kubetest/kubepods/burstable/pod{UID}/calabash-{main}"
    assert [node.membership.allocation_of(p.pid) for p in (worker, container, served)] == [main, other, None]
    node.membership.kill(main)
    assert worker.wait(60) == -signal.SIGKILL
    assert [p.poll() for p in (sandbox, container, served)] == [None] * 3
    (pod / f"calabash-{main}" / "cgroup.procs").unlink()  # the kernel's files go with the group
    assert node.membership.remove(main)
    assert not (pod / f"calabash-{main}").exists()


def test_entering_a_pod_without_group_is_refused(node: Node) -> None:
    process = identify(os.getpid())
    assert process is not None
    with pytest.raises(CalabashError, match="has no control group yet"):
        node.membership.enter(node.slot(UID, "main"), process)


def test_sandbox_of_a_pod_is_its_oldest_process_and_never_a_worker(node: Node) -> None:
    assert node.membership.sandbox(UID) is None
    worker = node.container(UID, f"calabash-{node.slot(UID, 'main')}")
    assert node.membership.sandbox(UID) is None
    sandbox = node.container(UID, "sandbox")
    node.container(UID, "aaaa")
    assert node.membership.sandbox(UID) == identify(sandbox.pid) != identify(worker.pid)


@pytest.mark.parametrize(
    ("uid", "container"),
    [(UID, "main"), (UID, "m" * 63), (UID, "a-b.c"), ("d41d8cd98f00b204e9800998ecf8427e", "static"), ("x" * 200, "é")],
)
def test_identifier_is_a_slot_name_and_begins_with_the_pod_uid(uid: str, container: str) -> None:
    name = container_allocation(uid, container)
    assert is_slot_name(name)
    assert name == container_allocation(uid, container)
    if uid == UID:
        assert name.startswith(DIGITS + "-")


def test_similar_container_names_have_different_identifiers() -> None:
    assert container_allocation(UID, "a-b") != container_allocation(UID, "ab")


def test_pods_are_found_under_both_cgroup_drivers(tmp_path: Path) -> None:
    plain = tmp_path / "kubepods" / "besteffort" / f"pod{UID}"
    sliced = tmp_path / "kubepods.slice" / "kubepods-burstable.slice"
    sliced /= f"kubepods-burstable-pod{OTHER.replace('-', '_')}.slice"
    for directory in (plain, sliced, tmp_path / "system.slice" / f"pod{UID}"):
        directory.mkdir(parents=True)
    found = pod_groups(ContainerHierarchy(directory=tmp_path, controller=""))
    assert found == {DIGITS: plain, OTHER.replace("-", ""): sliced}


def test_freezer_hierarchy_is_used_if_cgroup_v1_is_mounted() -> None:
    unified = Mounted(directory=Path("/cg/unified"), root="/", kind="cgroup2", writable=True)
    freezer = Mounted(directory=Path("/cg/freezer"), root="/", kind="cgroup", writable=True)
    both = find_container_hierarchy([unified, freezer])
    assert both == ContainerHierarchy(directory=freezer.directory, controller="freezer")
    alone = find_container_hierarchy([unified])
    assert alone == ContainerHierarchy(directory=unified.directory, controller="")
    assert type(alone.group(Path("/cg/unified/x"))) is Cgroup
    assert find_container_hierarchy([]) is None


@pytest.fixture
def version_2() -> Iterator[Path]:
    """A real group of version 2, as the top of a hierarchy."""
    found = find_hierarchy()
    if os.geteuid() != 0 or found is None:
        pytest.skip("no hierarchy of version 2 that may be written to")
    group = Cgroup(found.directory / f"calabash-containers-{os.getpid()}-{secrets.token_hex(4)}")
    group.create()
    yield group.directory
    group.kill()
    end = time.monotonic() + 60
    while not group.remove():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_container_is_found_stopped_and_killed_on_a_cgroup_v2_host(
    version_2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses the kernel's own files, in groups named as by the kubelet's systemd driver."""
    scope = version_2 / "kubepods.slice" / f"kubepods-pod{UID.replace('-', '_')}.slice" / "cri-containerd-abc.scope"
    scope.mkdir(parents=True)
    main = container_allocation(UID, "main")
    with subprocess.Popen(["sleep", "600"]) as process:
        (scope / "cgroup.procs").write_text(str(process.pid))
        membership = ContainerMembership(ContainerHierarchy(directory=version_2, controller=""), tmp_path)
        monkeypatch.setattr(
            membership_container, "mounted_devices", lambda pid: frozenset({7} if pid == process.pid else {1})
        )
        monkeypatch.setattr(membership, "_device", {main: 7}.get)
        monkeypatch.setattr(membership, "_devices", lambda: {main: 7})
        assert membership.processes(main) == [identify(process.pid)]
        assert membership.populated(main)
        assert membership.allocation_of(process.pid) == main
        membership.freeze(main, True)
        assert "1" in (scope / "cgroup.freeze").read_text()
        membership.freeze(main, False)
        assert not membership.remove(main)
        membership.kill(main)
        assert process.wait(60) == -signal.SIGKILL
    assert not membership.populated(main)
    assert membership.remove(main)


def test_members_of_a_claim_are_all_containers_with_its_slot_in_any_pod(node: Node) -> None:
    claim, own = node.claim(), node.slot(UID, "own")
    node.users[claim] = {UID, OTHER}
    first, _ = node.container(UID, "aaaa", claim), node.container(UID, "bbbb", own)
    assert node.membership.processes(claim) == [identify(first.pid)]
    node.now_s += 1
    second, third = node.container(OTHER, "cccc", claim), node.container(UID, "dddd", claim)
    assert {p.pid for p in node.membership.processes(claim)} == {first.pid, second.pid, third.pid}
    assert node.membership.allocation_of(second.pid) == claim
    assert node.membership.adopt([]) == {claim, own}
    for one in (first, second):
        one.kill()
        one.wait()
    assert node.membership.populated(claim)
    assert not node.membership.remove(claim)
    node.membership.kill(claim)
    third.wait()
    assert node.membership.remove(claim)


def test_container_of_an_unknown_pod_keeps_a_claim_in_use(node: Node) -> None:
    """The claim was taken from the pod by force; its programs still run."""
    claim = node.claim()
    node.users[claim] = {OTHER}
    forgotten = node.container(UID, "aaaa", claim)
    assert not node.membership.remove(claim)
    assert node.membership.processes(claim) == [identify(forgotten.pid)]


def test_container_of_an_unknown_pod_becomes_a_member_once_it_is_met_on_a_card(node: Node) -> None:
    claim = node.claim()
    node.users[claim] = {UID}
    first, later = node.container(UID, "aaaa", claim), node.container(OTHER, "bbbb", claim)
    assert node.membership.processes(claim) == [identify(first.pid)]
    node.names[later.pid] += "/aaaa"  # what a tenant has called a group of its own
    assert node.membership.allocation_of(later.pid) == claim
    node.now_s += 10
    for _ in range(2):
        assert {p.pid for p in node.membership.processes(claim)} == {first.pid, later.pid}


def test_any_pod_may_use_a_claim_while_its_users_are_unknown(node: Node) -> None:
    claim = node.claim()
    process = node.container(UID, "aaaa", claim)
    assert node.membership.processes(claim) == [identify(process.pid)]


def test_worker_of_a_claim_has_its_group_beside_the_pods_and_outlives_them(node: Node) -> None:
    claim = node.claim()
    node.users[claim] = {UID}
    node.container(UID, "aaaa", claim)
    process = subprocess.Popen(["sleep", "60"])
    node.started.append(process)
    found = identify(process.pid)
    assert found is not None
    group = node.hierarchy.directory / "kubetest" / "kubepods" / f"calabash-{claim}"
    group.mkdir()
    for name in ("cgroup.procs", "freezer.state"):
        (group / name).touch()
    node.membership.enter(claim, found)
    assert (group / "cgroup.procs").read_text().strip() == str(process.pid)
    assert process.pid in {p.pid for p in node.membership.processes(claim)}


def test_start_of_a_pod_is_unchanged_if_the_calendar_is_set(node: Node) -> None:
    """The kubelet wrote by that calendar when init containers of the pod ended."""
    first = node.container(UID, "sandbox")
    set_s = 0.0
    steps = CalendarSteps(now_s=lambda: time.time() + set_s)
    node.membership = ContainerMembership(node.hierarchy, node.slots, calendar=steps)
    before_s = node.membership.sandbox_since_s(UID)
    assert abs(before_s - time.time()) < 5
    set_s = 3600.0
    steps.observe()
    assert node.membership.sandbox_since_s(UID) == before_s
    first.kill()
