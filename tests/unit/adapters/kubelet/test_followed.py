"""Streams that follow a value: they yield the present value, then every change, and end normally."""

from __future__ import annotations

import asyncio

from calabash.adapters.kubelet.followed_value import Followed


def test_a_stream_tells_the_value_every_change_once_and_ends_when_it_is_told_to() -> None:
    async def scenario() -> None:
        value = Followed("a")
        following = value.follow()
        assert await anext(following) == "a"
        assert (value.streams, value.begun) == (1, 1)
        later = asyncio.ensure_future(anext(following))
        value.set("a")
        await asyncio.sleep(0)
        assert not later.done(), "what was told is not told again"
        value.set("b")
        assert await later == "b"
        value.end()
        assert await anext(following, "over") == "over"
        assert (value.streams, value.begun) == (0, 1)
        assert await anext(value.follow()) == "b", "who comes afterwards follows again"

    asyncio.run(scenario())


def test_a_value_that_goes_stale_is_told_again_without_a_change() -> None:
    async def scenario() -> None:
        following = Followed("a").follow(again_s=0.001)
        assert [await anext(following) for _ in range(3)] == ["a", "a", "a"]
        await following.aclose()

    asyncio.run(scenario())
