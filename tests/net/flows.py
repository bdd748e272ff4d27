"""Traffic that runs while something fails; it measures how long nothing passed, and which connections survived."""

from __future__ import annotations

import contextlib
import errno
import itertools
import selectors
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Self

from calabash.controllers.lab.station import Station

EVERY_S = 0.01
CALL_EVERY_S, CALL_S = 0.05, 0.3
_SIZE = 8


class Background:
    """A thread that runs while its context is entered: it executes ``_run``, which returns once ``_stopped`` is set."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        """Release the resources of the thread, after it has ended."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        self._close()


class Echoes(Background):
    """Echo server for UDP and TCP at one address of a station."""

    def __init__(self, station: Station, address: str, number: int) -> None:
        super().__init__()
        self._selector = selectors.DefaultSelector()
        self._datagrams = station.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._listener = station.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for one in (self._datagrams, self._listener):
            one.bind((address, number))
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ)
        self._listener.listen(128)

    def _run(self) -> None:
        while not self._stopped.is_set():
            for key, _ in self._selector.select(0.1):
                with contextlib.suppress(OSError):
                    self._answer(key.fileobj)  # type: ignore[arg-type]

    def _answer(self, ready: socket.socket) -> None:
        if ready is self._datagrams:
            data, peer = ready.recvfrom(100)
            ready.sendto(data, peer)
        elif ready is self._listener:
            client, _ = ready.accept()
            client.setblocking(False)
            self._selector.register(client, selectors.EVENT_READ)
        else:
            try:
                data = ready.recv(4096)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                ready.sendall(data)
            else:
                self._selector.unregister(ready)
                ready.close()

    def _close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()


class Probe(Background):
    """Client that sends a datagram to an ``Echoes`` every 10 ms and records when answers arrive."""

    def __init__(self, station: Station, address: str, number: int) -> None:
        super().__init__()
        self._socket = station.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect((address, number))
        self._socket.setblocking(False)
        self._answers: list[tuple[float, float]] = []  # when asked, when answered

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._socket, selectors.EVENT_READ)
        due_s = time.monotonic()
        with selector:
            while not self._stopped.is_set():
                if (now_s := time.monotonic()) >= due_s:
                    with contextlib.suppress(OSError):
                        self._socket.send(struct.pack("!d", now_s))
                    due_s = max(due_s + EVERY_S, now_s)
                if selector.select(max(0.0, due_s - time.monotonic())):
                    with contextlib.suppress(OSError):
                        while len(data := self._socket.recv(100)) == _SIZE:
                            self._answers.append((struct.unpack("!d", data)[0], time.monotonic()))

    def _close(self) -> None:
        self._socket.close()

    def answered_since(self, moment_s: float) -> bool:
        """Return True if a datagram that was sent after the moment (monotonic) was answered."""
        return any(asked > moment_s for asked, _ in self._answers[-200:])

    def hole_s(self, since_s: float) -> float:
        """Return the longest time after the moment in which no answered datagram was sent."""
        asked = sorted({since_s, *(asked for asked, _ in self._answers if asked > since_s)})
        return max((after - before for before, after in itertools.pairwise(asked)), default=float("inf"))


class Calls(Background):
    """Client that opens a connection every 50 ms and gives each up after 0.3 s, as clients with fast retries do.

    Args:
        question: sent on each connection; a call counts as answered if ``answer`` is in the first data received.
    """

    def __init__(
        self,
        station: Station,
        address: str,
        number: int,
        *,
        question: bytes = b"GET / HTTP/1.0\r\n\r\n",
        answer: bytes = b" 200 ",
    ) -> None:
        super().__init__()
        self._question, self._answer = question, answer
        self._station, self._target = station, (address, number)
        self._selector = selectors.DefaultSelector()
        self._open: dict[socket.socket, float] = {}
        self._answers: list[tuple[float, float]] = []

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._stopped.is_set():
            now_s = time.monotonic()
            if now_s >= due_s:
                self._begin(now_s)
                due_s = max(due_s + CALL_EVERY_S, now_s)
            for one in [one for one, begun_s in self._open.items() if now_s - begun_s > CALL_S]:
                self._end(one)
            for key, _ in self._selector.select(max(0.0, due_s - time.monotonic())):
                self._go_on(key.fileobj)  # type: ignore[arg-type]

    def _begin(self, now_s: float) -> None:
        family = socket.AF_INET6 if ":" in self._target[0] else socket.AF_INET
        one = self._station.socket(family, socket.SOCK_STREAM)
        one.setblocking(False)
        self._open[one] = now_s
        self._selector.register(one, selectors.EVENT_WRITE)
        if one.connect_ex(self._target) != errno.EINPROGRESS:
            self._end(one)

    def _go_on(self, one: socket.socket) -> None:
        try:
            if self._selector.get_key(one).events == selectors.EVENT_WRITE:
                one.sendall(self._question)
                self._selector.modify(one, selectors.EVENT_READ)
                return
            if self._answer in one.recv(100):
                self._answers.append((self._open[one], time.monotonic()))
        except OSError:
            pass
        self._end(one)

    def _end(self, one: socket.socket) -> None:
        self._selector.unregister(one)
        del self._open[one]
        one.close()

    def _close(self) -> None:
        for one in list(self._open):
            self._end(one)
        self._selector.close()

    def answered_s(self, since_s: float) -> float:
        """Return the seconds from the moment to the first answer to a call begun after it; infinite if there is none."""
        return min((answered - since_s for begun, answered in self._answers if begun > since_s), default=float("inf"))

    def hole_s(self, since_s: float) -> float:
        """Return the longest time after the moment in which no call was answered."""
        times = sorted({since_s, *(answered for _, answered in self._answers if answered > since_s)})
        return max((after - before for before, after in itertools.pairwise(times)), default=float("inf"))


class Streams:
    """Established TCP connections to an ``Echoes``."""

    def __init__(self, station: Station, address: str, number: int, count: int) -> None:
        self.sockets: list[socket.socket] = []
        for _ in range(count):
            one = station.socket(socket.AF_INET, socket.SOCK_STREAM)
            one.settimeout(60)
            self.sockets.append(one)
            one.connect((address, number))
        self.lost()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self.sockets:
            one.close()

    def lost(self, within_s: float = 60.0) -> int:
        """Return the number of connections that do not echo what is sent now."""
        failed = 0
        for number, one in enumerate(self.sockets):
            said = struct.pack("!II", number, 1)
            one.settimeout(within_s)
            try:
                one.sendall(said)
                failed += one.recv(_SIZE, socket.MSG_WAITALL) != said
            except OSError:
                failed += 1
        return failed
