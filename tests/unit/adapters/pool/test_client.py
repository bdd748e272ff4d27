"""Client of the pool over its Unix socket: incomplete answers, and a pool that is slow to accept connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from calabash.adapters.pool.client import SOCKET_FILE, PoolClient
from calabash.api import endpoints
from calabash.model.errors import CalabashError, Reason


@contextmanager
def _answering(home: Path, answer: bytes) -> Iterator[PoolClient]:
    """Run a server that answers the first request with these bytes and then closes; yield a client of it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / SOCKET_FILE))
        listener.listen(1)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield PoolClient(home)
        thread.join(60)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        HEAD,
        HEAD + b'{"a": 1',
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"220 mail.example.org ready\r\n\r\n",
    ],
)
def test_a_pool_that_dies_in_the_middle_of_an_answer_is_down(tmp_path: Path, answer: bytes) -> None:
    with _answering(tmp_path, answer) as pool, pytest.raises(CalabashError) as told:
        pool.send(endpoints.SHOW_STATUS)
    assert told.value.reason is Reason.POOL_DOWN
    assert told.value.hint


def test_a_whole_answer_is_taken(tmp_path: Path) -> None:
    with _answering(tmp_path, HEAD + b'{"a": 12}') as pool:
        assert pool.send(endpoints.SHOW_STATUS) == {"a": 12}


def test_where_many_wait_to_be_let_in_the_client_waits_as_well(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(tmp_path / SOCKET_FILE))
        listener.listen(0)
        first.connect(str(tmp_path / SOCKET_FILE))  # the queue is full now
        begun = time.monotonic()
        with pytest.raises(CalabashError) as told:
            PoolClient(tmp_path).send(endpoints.SHOW_STATUS, timeout_s=0.2)
        assert told.value.reason is Reason.TIMEOUT
        assert time.monotonic() - begun >= 0.19
