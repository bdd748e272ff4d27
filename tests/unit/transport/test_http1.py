"""HTTP/1.1 as API servers and kube-scheduler speak it: what is understood, what is refused and with which words."""

from __future__ import annotations

import asyncio

import pytest

from calabash.transport.http1 import Bounds, HttpQuestion, RefusedError, read_first, read_head, read_question

BOUNDS = Bounds(head_bytes=1024, body_bytes=1000, idle_s=0.05, head_s=0.05, body_s=0.05)


def read(sent: bytes, *, ended: bool = False) -> tuple[HttpQuestion, bool]:
    async def both() -> tuple[HttpQuestion, bool]:
        reader = asyncio.StreamReader(limit=BOUNDS.head_bytes)
        reader.feed_data(sent)
        if ended:
            reader.feed_eof()
        head = await read_head(await read_first(reader, BOUNDS.idle_s), reader, BOUNDS)
        return await read_question(head, reader, BOUNDS)

    return asyncio.run(both())


@pytest.mark.parametrize(
    ("sent", "question", "keep"),
    [
        (b"GET /a HTTP/1.1\r\n\r\n", HttpQuestion(method="GET", path="/a"), True),
        (b"GET /a?b=c HTTP/1.0\r\n\r\n", HttpQuestion(method="GET", path="/a", query="b=c"), False),
        (b"GET /a HTTP/1.1\r\nConnection: Close\r\n\r\n", HttpQuestion(method="GET", path="/a"), False),
        (
            b"POST /a?timeout=5s HTTP/1.1\r\nHost: x:1\r\nCONTENT-LENGTH:  2 \r\n\r\nab",
            HttpQuestion(method="POST", path="/a", body=b"ab", query="timeout=5s"),
            True,
        ),
        (
            b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000,
            HttpQuestion(method="POST", path="/", body=b"x" * 1000),
            True,
        ),
    ],
)
def test_a_question_is_read_whole_and_it_is_known_whether_another_may_come(
    sent: bytes, question: HttpQuestion, keep: bool
) -> None:
    assert read(sent) == (question, keep)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length : 1\r\n\r\na", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\na", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\na", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1111111111111\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: identity\r\n\r\nab", 411),
        (b"POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", 413),
    ],
)
def test_what_is_no_question_of_bounded_size_is_refused_with_its_status(sent: bytes, status: int) -> None:
    with pytest.raises(RefusedError) as refused:
        read(sent)
    assert refused.value.status.value == status


def test_a_head_that_is_too_long_a_body_that_is_cut_and_one_that_does_not_come_are_not_waited_for() -> None:
    with pytest.raises(asyncio.LimitOverrunError):
        read(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 300)
    with pytest.raises(EOFError):
        read(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab", ended=True)
    with pytest.raises(TimeoutError):
        read(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab")
    with pytest.raises(TimeoutError):
        read(b"POST / HT")
