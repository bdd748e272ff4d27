"""HTTP server: a connection is read only after the pacer of its user admits it, with every version of Python."""

from __future__ import annotations

import errno
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from calabash.platform.home.limits import Limits
from calabash.platform.http.request_limits import UserRequestLimits
from calabash.platform.http.server import Listener, Receive, Send, Server, connection_of
from calabash.transport.listening import listen_unix

CLIENTS = 60  # more than one period's turns of one user


def _add_reader_of_older_python(transport: Any, descriptor: int, callback: Any, *arguments: Any) -> None:
    """Add a reader as Python up to 3.11.2 does: without a check of the transport's state."""
    transport._loop._add_reader(descriptor, callback, *arguments)


async def _answer(scope: Any, receive: Receive, send: Send) -> None:
    assert connection_of(scope).caller is not None
    await receive()
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("python", ["this", "older"])
def test_a_request_that_is_there_before_its_turn_is_answered_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    if python == "older":
        monkeypatch.setattr("asyncio.selector_events._SelectorTransport._add_reader", _add_reader_of_older_python)
    path = tmp_path / "socket"
    clients = [socket.socket(socket.AF_UNIX) for _ in range(CLIENTS)]
    fairness = UserRequestLimits(Limits(), exempt=lambda _: True)
    with Listener(fairness) as listener:
        listen_unix(path, listener, mode=0o666)
        for client in clients:  # all of them are there when the server begins
            client.settimeout(60)
            client.connect(str(path))
            client.sendall(b"GET /v1/x HTTP/1.1\r\nHost: pool\r\n\r\n")
        server = Server([listener], fairness)
        serving = threading.Thread(target=server.run, args=(_answer,))
        serving.start()
        try:
            assert {client.recv(4096).split()[1] for client in clients} == {b"204"}
        finally:
            server.stop()
            serving.join()
            for client in clients:
                client.close()


def test_connections_beyond_the_descriptors_are_answered_503_and_later_ones_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of the listener alone is lowered: all but the next few descriptors are reserved for other uses."""
    path, clients = tmp_path / "socket", []

    def ask() -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(60)
        client.connect(str(path))
        with suppress(BrokenPipeError):  # the refusal may be there already
            client.sendall(b"GET /v1/x HTTP/1.1\r\nHost: pool\r\n\r\n")
        clients.append(client)
        return client

    fairness = UserRequestLimits(Limits(), exempt=lambda _: True)
    with Listener(fairness) as listener:
        listen_unix(path, listener, mode=0o666)
        server = Server([listener], fairness)
        serving = threading.Thread(target=server.run, args=(_answer,))
        serving.start()
        try:
            assert ask().recv(4096).split()[1] == b"204"
            end = listener._numbers_end
            monkeypatch.setattr(listener, "_numbers_end", 3)
            for _ in range(3):
                answer = ask().recv(4096)
                assert answer.split()[1] == b"503"
                assert b'"overloaded"' in answer
            monkeypatch.setattr(listener, "_numbers_end", end)
            assert ask().recv(4096).split()[1] == b"204"
            accept = socket.socket.accept
            failures: list[OSError] = []

            def accept_or_fail(self: socket.socket) -> Any:
                if failures:
                    raise failures.pop()
                return accept(self)

            monkeypatch.setattr(socket.socket, "accept", accept_or_fail)
            for number in (errno.EMFILE, errno.ENFILE):
                failures.append(OSError(number, "injected"))
                assert ask().recv(4096).split()[1] == b"503", "the kept descriptor makes room for an answer"
                assert ask().recv(4096).split()[1] == b"204"
            failures += [OSError(errno.EMFILE, "injected"), OSError(errno.EMFILE, "injected")]
            assert ask().recv(4096).split()[1] == b"204", "served when there are descriptors again"
        finally:
            server.stop()
            serving.join()
            for client in clients:
                client.close()
