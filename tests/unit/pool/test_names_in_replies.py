"""Replies of the API name no object of others, in random states with waiting, evicted, refused and ended requests."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from calabash.adapters.host.processes import Peer
from calabash.adapters.store import open_store
from calabash.api.requests import AllocationRequest, QueueSettings
from calabash.model.device import Device, DeviceReading, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, QueueName, RequestName, TenantName, UserName
from calabash.model.request import AllocationId, ModeName
from calabash.model.tenancy import Member, Principal, Role, Tenant, User
from calabash.node import wiring
from calabash.node.agent import NodeAgent
from calabash.node.membership.lease import LeaseMembership
from calabash.node.modes.protocol import NodeTools, ViewOnly
from calabash.node.slots.content import SlotDevice
from calabash.platform.access.caller import Caller
from calabash.platform.access.permission import Permission
from calabash.platform.audit.trail import AuditTrail
from calabash.platform.handlers import request as handlers_request
from calabash.platform.http import server
from calabash.platform.http.request_limits import UserRequestLimits
from calabash.platform.networks.wiring import networking
from calabash.platform.tenancy.store import TenantDirectory
from calabash.pool.handlers.application import application
from calabash.pool.handlers.context import Context
from calabash.pool.jobs.service import Jobs
from calabash.pool.networks.listening_ports import PlaceJournal
from calabash.pool.pool import Pool
from calabash.pool.settings import Settings
from calabash.pool.wiring import build_pool
from calabash.sharing.protocol import Edits
from calabash_testing.clock import VirtualClock

CARDS = tuple(
    Device(uuid=DeviceUuid(f"GPU-{i}"), index=i, vendor="nvidia", model="A100", memory_mib=40_000) for i in range(3)
)
EXCLUSIVE = ModeName("exclusive")
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # a pool for each example: shrinking would take minutes
PATHS = (
    "/v1/allocations?all=1", "/v1/allocations?ended=1", "/v1/devices", "/v1/devices/0", "/v1/devices/2", "/v1/events",
    "/v1/queues", "/v1/overview", "/v1/status", "/v1/mig", "/v1/me", "/v1/quota", "/v1/tenants", "/v1/users", "/v1/tokens",
    "/v1/usage", "/v1/jobs", "/v1/notifications", "/v1/audit", "/v1/changes", "/v1/counters", "/v1/scenario", "/v1/invoices",
    "/v1/networks/objects",
)  # fmt: skip


class NamedAccounts:
    """Accounts with the given uids, in no groups."""

    def __init__(self, uids: dict[str, int]) -> None:
        self._uids = uids

    def uid_of(self, login: str) -> int:
        return self._uids.get(login, -1)

    def groups_of(self, uid: int) -> frozenset[str]:
        return frozenset()


class Driver:
    """Cards that answer."""

    vendor = "nvidia"

    def devices(self) -> tuple[Device, ...]:
        return CARDS

    def read(self, uuid: DeviceUuid) -> DeviceReading:
        return DeviceReading(uuid=uuid, memory_used_mib=0, utilization_percent=0, temperature_c=30, power_w=50.0)


class Whole(ViewOnly):
    """Mode that gives whole cards and creates nothing."""

    name = EXCLUSIVE

    def provide(self, record: Any) -> tuple[SlotDevice, ...]:
        return tuple(SlotDevice(uuid=part.device) for part in record.placement.slices)

    def edits(self, record: Any) -> Edits:
        return Edits(environment=())


class Membership(LeaseMembership):
    """Membership of a pool that serves all users; no process is a member."""

    form = "kernel"


class World:
    """A pool with its API in this process, a user of a hidden tenant, and a user without rights there."""

    def __init__(self, home: Path, stack: ExitStack, *, mark: str) -> None:
        self.tenant, self.user, self.queue, self.gang = (
            f"tenant-{mark}",
            f"user-{mark}",
            f"queue-{mark}",
            f"gang-{mark}",
        )
        self.clock = VirtualClock()
        store = open_store(f"sqlite:///{home}/journal.db")
        stack.callback(store.close)

        def modes(tools: NodeTools) -> Mapping[ModeName, Whole]:
            return {EXCLUSIVE: Whole(tools)}

        with mock.patch.object(wiring, "open_modes", modes):
            agent = NodeAgent(
                home=home,
                store=store,
                clock=self.clock,
                drivers=[cast("Any", Driver())],
                library=home / "libcalabash.so",
                node="n",
                membership=Membership(lambda allocation: home / "alloc" / allocation / "lease"),
            )
        directory = TenantDirectory(store.tenancy)
        permission = Permission(
            0,
            everybody=True,
            people=directory.people,
            accounts=NamedAccounts({self.user: 4001, "eve": 4002}),
        )
        networks, certificates = networking(
            store.networks, permission=permission, people=directory.people, clock=self.clock
        )
        audit = AuditTrail(home, store.audit, self.clock)
        audit.start()
        stack.callback(audit.stop)
        settings_ = Settings()
        self.pool: Pool
        self.pool, notices = build_pool(
            stack,
            home=home,
            settings=settings_,
            store=store,
            clock=self.clock,
            agent=agent,
            directory=directory,
            permission=permission,
            networks=networks,
            network=cast("Any", SimpleNamespace(require=lambda _: None)),
            journal=PlaceJournal(home),
            audit=audit,
        )
        stack.callback(self._end_all)
        tenancy = self.pool.tenancy
        tenancy.put_tenant(Tenant(name=self.tenant))
        tenancy.put_tenant(Tenant(name="visible"))
        for user, tenant in ((self.user, self.tenant), ("eve", "visible")):
            tenancy.put_user(User(name=user))
            tenancy.put_member(Member(user=user, role=Role.MEMBER, tenant=tenant))
        self.pool.queues.put_queue(
            self.queue, QueueSettings(deserved=2.0, users=[self.user], new=True), self.pool.binder
        )
        people = tenancy.people()
        self.owner, self.eve, self.root = (
            self._caller(Principal(user=self.user, uid=4001, roles=people.members[self.user])),
            self._caller(Principal(user="eve", uid=4002, roles=people.members["eve"])),
            self._caller(Principal(user="root", uid=0, roles=(Member(user="root", role=Role.ADMIN),))),
        )
        self.names = {self.tenant, self.user, self.queue, self.gang}
        self.hidden_ids: list[str] = []
        self.own_ids: list[str] = []
        self.refusals: list[str] = []  # texts of the errors that the user without rights got
        self._application = application(
            self.pool,
            Context(home=home, sim="", simulation={}, driver="", arbiter_pid=lambda: 0),
            audit=audit,
            fairness=UserRequestLimits(settings_.user, exempt=lambda _: True),
            jobs=Jobs(self.pool, home=home, settings=settings_.jobs),
            notices=notices,
            networks=networks,
            certificates=certificates,
            stop=lambda: None,
        )

    def _caller(self, principal: Principal) -> Caller:
        return Caller(peer=Peer(pid=0, uid=principal.uid, gid=principal.uid), principal=principal)

    def submit(self, who: Caller, *, gpus: int, gang: int = 0, queue: str = "", wait: bool = True) -> None:
        """Submit a request, which waits, is granted or is refused."""
        wanted = AllocationRequest(
            gpus=gpus,
            mode=EXCLUSIVE,
            queue=queue,
            wait_s=60.0 if wait else 0.0,
            gang=(self.gang if who is self.owner else "own") if gang else "",
            gang_size=gang or 1,
            command=["train", self.gang] if who is self.owner else [],
        )
        ids = self.hidden_ids if who is self.owner else self.own_ids
        try:
            ids.append(self.pool.submit(wanted, who).id)
        except CalabashError as error:
            visibility = self.pool.visibility(self.eve.principal)
            if who is self.eve:
                self.refusals += [visibility.text(error.message_text), visibility.text(error.hint_text)]

    def release(self, number: int, who: Caller) -> None:
        """Release or withdraw one of the hidden requests."""
        if self.hidden_ids:
            with suppress(CalabashError):
                self.pool.release(AllocationId(self.hidden_ids[number % len(self.hidden_ids)]), caller=who, force=True)

    def fault(self, number: int) -> None:
        """Record an event and an unhealthy device, whose cause names the objects of the hidden tenant."""
        device = CARDS[number % len(CARDS)]
        cause = Message(
            "a fault of allocation {a} of {user} of {tenant} in {queue}",
            a=RequestName(self.hidden_ids[-1] if self.hidden_ids else "none"),
            user=UserName(self.user),
            tenant=TenantName(self.tenant),
            queue=QueueName(self.queue),
        )
        self.pool.agent.event("health", reason="suspect", device=device.uuid, message=cause)

    def settle(self) -> None:
        self.pool.agent._parts.events.flush()
        self.pool.agent._parts.allocations.sweep()
        self.clock.advance(0.5)
        self.pool.binder.schedule()
        self.pool.agent._parts.events.flush()

    def _end_all(self) -> None:
        self.pool.binder.close()
        for record in self.pool.agent.records():
            self.pool.agent.end(record.id, reason="shutdown", explanation="")
        for _ in range(5):
            self.pool.agent._parts.allocations.sweep()
        assert self.pool.agent.records() == []

    def ask(self, who: Caller, path: str, method: str = "GET") -> str:
        """Return the whole reply to a request of the API, as text."""
        path, _, query = path.partition("?")
        line = SimpleNamespace(token_required=False, caller=who, abort=lambda: None)
        scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": query.encode(), "headers": [], "root_path": "",
            "client": ("local", 0), "server": ("local", 0),
            "state": {server._SCOPE_KEY: line, handlers_request._CALLER: who},
        }  # fmt: skip
        sent: list[bytes] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(bytes(message.get("body", b"")))

        async def call() -> None:
            await self._application(scope, cast("Any", receive), cast("Any", send))

        asyncio.run(call())
        return b"".join(sent).decode()


@contextmanager
def world(mark: str) -> Iterator[World]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield World(home, stack, mark=mark)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hidden"), st.integers(1, 4), st.sampled_from([0, 2, 3]), st.booleans()),
        st.tuples(st.just("own"), st.integers(1, 4), st.sampled_from([0, 2]), st.booleans()),
        st.tuples(st.just("release"), st.integers(0, 8), st.booleans()),
        st.tuples(st.just("fault"), st.integers(0, 8)),
    ),
    min_size=2,
    max_size=10,
)


def _run(one: World, steps: list[Any]) -> None:
    for step in steps:
        match step:
            case ("hidden", int(gpus), int(gang), bool(queued)):
                one.submit(one.owner, gpus=gpus, gang=gang, queue=one.queue if queued else "")
            case ("own", int(gpus), int(gang), bool(wait)):
                one.submit(one.eve, gpus=gpus, gang=gang, wait=wait)
            case ("release", int(number), bool(by_root)):
                one.release(number, one.root if by_root else one.owner)
            case ("fault", int(number)):
                one.fault(number)
        one.settle()


@settings(max_examples=15, deadline=None, phases=PHASES)
@given(st.from_regex(r"\A[a-z]{3}zq[0-9]{6}\Z"), STEPS)
def test_no_reply_to_a_user_names_an_object_of_others_and_replies_to_administrators_do(
    mark: str, steps: list[Any]
) -> None:
    with world(mark) as one:
        one.submit(one.owner, gpus=2, queue=one.queue)
        _run(one, steps)
        one.submit(one.eve, gpus=3)
        one.submit(one.eve, gpus=3, wait=False)
        one.settle()
        hidden = {*one.names, *one.hidden_ids}
        for path in (*PATHS, *(f"/v1/allocations/{name}/why" for name in one.own_ids)):
            reply = one.ask(one.eve, path)
            assert [name for name in hidden if name in reply] == [], f"{path}: {reply}"
        assert [text for text in one.refusals if any(name in text for name in hidden)] == []
        every = "".join(one.ask(one.root, path) for path in PATHS)
        assert [name for name in (one.tenant, one.user, one.queue, *one.hidden_ids) if name not in every] == []


@settings(max_examples=15, deadline=None, phases=PHASES)
@given(st.from_regex(r"\A[a-z]{3}zq[0-9]{6}\Z"), STEPS)
def test_reply_about_a_hidden_object_is_that_about_an_unknown_one(mark: str, steps: list[Any]) -> None:
    with world(mark) as one:
        one.submit(one.owner, gpus=2, queue=one.queue)
        _run(one, steps)
        name = one.hidden_ids[0]
        for method, path in (
            ("GET", "/v1/allocations/{}/why"),
            ("GET", "/v1/allocations/{}/environment"),
            ("DELETE", "/v1/allocations/{}"),
        ):
            unknown = "0" * len(name)
            hidden_reply, unknown_reply = (one.ask(one.eve, path.format(n), method) for n in (name, unknown))
            assert json.loads(hidden_reply)["reason"] in {Reason.NOT_FOUND, Reason.NOT_PERMITTED}
            assert hidden_reply.replace(name, unknown) == unknown_reply, path
