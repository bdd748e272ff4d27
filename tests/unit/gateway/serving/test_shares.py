"""Tests of limits per user: waiting requests and watchers of one user leave room for those of other users."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.gateway.standin import GATEWAY, GatewayWorld, PoolStandIn

from calabash.adapters.pool.request_slots import Places
from calabash.adapters.pool.streams import PoolAnswer
from calabash.api.changes import ChangeList
from calabash.api.gateway import ConsoleSettings, GatewayLimits
from calabash.api.tenancy import Me
from calabash.gateway.serving import request_guard
from calabash.gateway.serving.server import gateway_server
from calabash.model.errors import CalabashError, Reason

HANG_S, SHORT_S = 60.0, 0.1
WAITS = "/v1/allocations?wait"
LIMITS = GatewayLimits(waiting=8, waiting_per_user=4, watchers=6, watchers_per_user=3)


class WaitingPool(PoolStandIn):
    """Pool that does not answer requests with ``wait`` in their path. ``cal_USER_...`` is a token of USER."""

    def __init__(self) -> None:
        super().__init__()
        self.places = Places(LIMITS.waiting + LIMITS.watchers, LIMITS.waiting_per_user)
        self.open = 0

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        token: str = "",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        holder: str = "",
    ) -> PoolAnswer:
        async with self.places.place(holder):
            user = token.split("_")[1]
            if path == "/v1/me" and token != GATEWAY:
                me = Me(user=user, uid=-1, token="x", kind="api", scopes=[], own="", roles=[], may=[], tenants=[])
                return PoolAnswer(status=200, content=msgspec.json.encode(me))
            if path.startswith("/v1/changes") and "wait_s" not in path:
                return PoolAnswer(status=200, content=msgspec.json.encode(ChangeList(items=[], next=1, reset=False)))
            if "wait" in path:
                self.open += 1
                try:
                    await asyncio.Event().wait()
                finally:
                    self.open -= 1
            self.tokens.add(token)
            return await super().ask(method, path, body, token=token, headers=headers, timeout_s=timeout_s)


class Client:
    """Client of the gateway on a port of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._begun: list[Exchange] = []  # a connection that nothing refers to is closed

    async def begin(self, token: str, path: str, *, more: bytes = b"") -> Exchange:
        """Send a request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        writer.write(head.encode() + more)
        self._begun.append(Exchange(reader, writer))
        return self._begun[-1]

    async def status(self, token: str, path: str) -> int:
        """Return the status of the reply."""
        exchange = await self.begin(token, path)
        try:
            return await exchange.status()
        finally:
            exchange.writer.close()


class Exchange:
    """A request and its reply."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def status(self) -> int:
        async with asyncio.timeout(HANG_S):
            return int((await self.reader.readuntil(b"\r\n\r\n")).split()[1])


def _with_gateway(test: Callable[[Client, WaitingPool], Awaitable[None]]) -> None:
    async def both() -> None:
        pool = WaitingPool()
        world = GatewayWorld(settings=ConsoleSettings(limits=LIMITS), pool=pool)
        server = gateway_server(world.application, LIMITS)
        listener = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0, start_serving=False)
        (sock,) = listener.sockets
        serving = asyncio.ensure_future(server.serve(sockets=[sock.dup()]))
        try:
            await asyncio.wait_for(test(Client(sock.getsockname()[1]), pool), HANG_S)
        finally:
            server.should_exit = True
            await serving

    asyncio.run(both())


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not condition():
            await asyncio.sleep(0.01)


def test_user_whose_waiting_requests_fill_its_share_is_refused_and_another_is_served() -> None:
    async def test(client: Client, pool: WaitingPool) -> None:
        for number in range(LIMITS.waiting_per_user):
            await client.begin(f"cal_ann_token{number}", WAITS)
        await _until(lambda: pool.open == LIMITS.waiting_per_user)
        refused = await client.begin("cal_ann_token0", WAITS)
        assert await refused.status() == 429
        body = msgspec.json.decode(await refused.reader.readuntil(b"}"))
        assert body["reason"] == "user_limit"
        assert f"it may have {LIMITS.waiting_per_user} at a time" in body["message"]
        assert body["hint"]
        assert await client.status("cal_bob_token0", "/v1/queues") == 200

    _with_gateway(test)


@pytest.mark.parametrize("more", [b"", b"GET /v1/queues HTTP/1.1\r\n"], ids=["plain", "next-request-begun"])
def test_client_that_hangs_up_frees_its_place(more: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_guard, "HANG_UP_S", SHORT_S)

    async def test(client: Client, pool: WaitingPool) -> None:
        held = [await client.begin("cal_ann_token0", WAITS, more=more) for _ in range(LIMITS.waiting_per_user)]
        await _until(lambda: pool.open == LIMITS.waiting_per_user)
        assert await client.status("cal_ann_token0", "/v1/queues") == 429
        for exchange in held:
            exchange.writer.close()
        await _until(lambda: pool.open == 0)
        assert await client.status("cal_ann_token0", "/v1/queues") == 200

    _with_gateway(test)


def test_requests_of_all_tokens_of_a_user_are_bounded_together_and_another_user_is_served() -> None:
    limits = GatewayLimits(
        requests_per_second=1, requests_at_once=5, requests_per_second_per_user=1, requests_at_once_per_user=8
    )
    world = GatewayWorld(settings=ConsoleSettings(limits=limits), pool=WaitingPool())

    def status(token: str, path: str = "/v1/queues") -> int:
        return world("GET", path, authorization=f"Bearer {token}").status

    assert [status(f"cal_ann_token{n}") for n in range(100)] == [200] * 8 + [429] * 92
    refused = world("GET", "/v1/queues", authorization="Bearer cal_ann_another")
    assert (refused.status, refused.json()["reason"]) == (429, "user_limit")
    assert int(refused.headers["retry-after"]) >= 1
    assert status("cal_ann_token0", "/v1/watch") == 429
    assert [status("cal_bob_token0") for _ in range(6)] == [200] * 5 + [429], "the bound of one token holds beside it"


def test_bound_of_a_user_is_twice_that_of_a_token_where_nothing_else_is_said() -> None:
    world = GatewayWorld(
        settings=ConsoleSettings(limits=GatewayLimits(requests_per_second=1, requests_at_once=3)), pool=WaitingPool()
    )
    answers = [world("GET", "/v1/queues", authorization=f"Bearer cal_ann_token{n}").status for n in range(8)]
    assert answers == [200] * 6 + [429] * 2


def test_watchers_of_all_tokens_of_a_user_are_bounded_together() -> None:
    async def test(client: Client, pool: WaitingPool) -> None:
        for number in range(LIMITS.watchers_per_user):
            assert await (await client.begin(f"cal_ann_token{number}", "/v1/watch")).status() == 200
        assert await client.status("cal_ann_another", "/v1/watch") == 429
        assert await (await client.begin("cal_bob_token0", "/v1/watch")).status() == 200
        assert await client.status("cal_ann_token0", "/v1/queues") == 200

    _with_gateway(test)


def test_watcher_of_another_user_finds_room_where_all_is_taken() -> None:
    async def test(client: Client, pool: WaitingPool) -> None:
        ann = [await client.begin(f"cal_ann_token{n}", "/v1/watch") for n in range(3)]
        assert [await one.status() for one in ann] == [200] * 3
        bob = [await client.begin(f"cal_bob_token{n}", "/v1/watch") for n in range(3)]
        assert [await one.status() for one in bob] == [200] * 3
        eve = await client.begin("cal_eve_token0", "/v1/watch")
        assert await eve.status() == 200
        assert await asyncio.wait_for(ann[0].reader.read(), HANG_S), "the stream of the oldest one ends"
        assert await client.status("cal_ann_token0", "/v1/watch") in {200, 429}
        assert await client.status("cal_eve_token0", "/v1/queues") == 200

    _with_gateway(test)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=80))
def test_places_are_counted_right_and_a_new_holder_finds_one(steps: list[tuple[str, bool]]) -> None:
    async def test() -> None:
        places, held = Places(64, 16), list[tuple[str, asyncio.Task[None]]]()

        async def hold(holder: str) -> None:
            async with places.place(holder):
                await asyncio.Event().wait()

        for holder, begins in steps:
            if begins:
                task = asyncio.ensure_future(hold(holder))
                await asyncio.sleep(0)
                if task.done():
                    refused = task.exception()
                    assert isinstance(refused, CalabashError)
                    assert refused.reason is Reason.USER_LIMIT
                    assert sum(name == holder for name, _ in held) > 0
                else:
                    held.append((holder, task))
            elif held:
                _, task = held.pop(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert max((sum(name == one for name, _ in held) for one in "abcd"), default=0) <= 16
            async with asyncio.timeout(HANG_S), places.place("new"):
                pass
        for _, task in held:
            task.cancel()
        await asyncio.gather(*(task for _, task in held), return_exceptions=True)
        async with places.place("a"):
            pass

    asyncio.run(test())
