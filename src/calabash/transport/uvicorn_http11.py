"""uvicorn's HTTP/1.1 protocol, hardened against clients that violate the protocol in the middle of a request.

uvicorn answers invalid bytes with 400 while the application is still answering the previous request; the application's
reply then fails with an error whose report has all headers in it. An error while reading bytes leaves the connection
open. This class reports a disconnected client to the application of a broken request, and ends the connection.
"""

from __future__ import annotations

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class StrictProtocol(H11Protocol):
    """uvicorn's protocol object of one connection, which closes the connection at the first malformed request."""

    def handle_events(self) -> None:
        """Process the received bytes. Never raises."""
        try:
            super().handle_events()
        except h11.ProtocolError:
            self._end_request()
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request, if no reply has begun, and end the connection."""
        self._end_request()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def _end_request(self) -> None:
        """Report to the application that the client of the request being answered has disconnected; drop its reply."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
