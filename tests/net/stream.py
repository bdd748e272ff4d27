"""A steady stream of numbered frames between two stations, and which of them arrived."""

from __future__ import annotations

import itertools
import socket
import struct
import time

from tests.net.flows import Background
from tests.net.packets import IPV4, UDP, Sniffer, ethernet, ip, udp

from calabash.controllers.lab.station import Station

GAP_S = 0.005
_MARK = b"calabash-stream:"


class Stream(Background):
    """Send a frame every five milliseconds while the context is entered; ``lost`` and ``hole_s`` cover all frames."""

    def __init__(self, one: Station, other: Station, *, last_s: float = 5.0) -> None:
        """Prepare the stream. ``last_s``: seconds that the last frame may take to arrive."""
        super().__init__()
        self._one, self._other = one, other
        self._last_s = last_s
        self._sent: list[float] = []
        self._sniffer = Sniffer(other)

    def _close(self) -> None:
        with self._sniffer:
            last = _MARK + struct.pack("!I", len(self._sent) - 1)
            self._sniffer.wait(last, timeout_s=self._last_s)
            frames = self._sniffer.frames
        came = {struct.unpack("!I", f.split(_MARK, 1)[1][:4])[0] for f in frames if _MARK in f}
        self.lost = len(self._sent) - len(came)
        self.hole_s = self._longest(sorted(came))

    @property
    def sent(self) -> int:
        return len(self._sent)

    def _longest(self, came: list[int]) -> float:
        times = [self._sent[0], *(self._sent[number] for number in came), self._sent[-1]]
        return max((after - before for before, after in itertools.pairwise(times)))

    def _run(self) -> None:
        one, other = self._one, self._other
        with one.socket(socket.AF_PACKET, socket.SOCK_RAW) as card:
            card.bind((one.card, 0))
            while not self._stopped.wait(GAP_S):
                payload = _MARK + struct.pack("!I", len(self._sent))
                body = ip(
                    one.address(), other.address(), UDP, udp(one.address(), other.address(), (4000, 4000), payload)
                )
                card.send(ethernet(one.mac, other.mac, IPV4, body))
                self._sent.append(time.monotonic())
