"""Client of a pool on another machine: the servers to which a token is sent, and the file in which it is stored."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from calabash.adapters.pool.gateway_client import ServerClient, TokenStore, checked_url
from calabash.api import endpoints
from calabash.model.errors import CalabashError, Reason


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.headers["Authorization"] == "Bearer right"
        content = (
            b'{"items": [1]}' if known else b'{"reason": "not_authenticated", "message": "who?", "hint": "log in"}'
        )
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("https://gpu.example.org", "https://gpu.example.org"),
        ("https://gpu.example.org:7432/", "https://gpu.example.org:7432"),
        ("http://localhost:7432", "http://localhost:7432"),
        ("http://[::1]:7432", "http://[::1]:7432"),
    ],
)
def test_an_address_is_taken_without_what_does_not_matter(given: str, meant: str) -> None:
    assert checked_url(given) == meant


@pytest.mark.parametrize("given", ["http://gpu.example.org", "http://10.0.0.1:7432"])
def test_a_token_does_not_go_over_a_network_in_the_clear(given: str) -> None:
    with pytest.raises(CalabashError, match="in the clear"):
        checked_url(given)


@pytest.mark.parametrize(
    "given", ["", "gpu.example.org", "ftp://x", "https://", "https://u:p@x", "https://x/y", "https://x:y"]
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(CalabashError, match="is not the URL"):
        checked_url(given)


def test_the_pools_answer_and_its_refusal_come_as_from_the_pool_itself(url: str) -> None:
    assert ServerClient(url, "right").items(endpoints.LIST_QUEUES) == [1]
    with pytest.raises(CalabashError, match="who") as told:
        ServerClient(url, "wrong").send(endpoints.LIST_QUEUES)
    assert (told.value.reason, told.value.hint) == (Reason.NOT_AUTHENTICATED, "log in")
    assert "right" not in repr(ServerClient(url, "right"))


def test_nobody_at_that_address_is_a_pool_that_is_down() -> None:
    with pytest.raises(CalabashError) as told:
        ServerClient("http://127.0.0.1:1", "x").send(endpoints.SHOW_STATUS)
    assert told.value.reason is Reason.POOL_DOWN


def test_tokens_are_kept_by_server_for_their_owner_alone(tmp_path: Path) -> None:
    store = TokenStore(str(tmp_path / "calabash" / "token"))
    store.store("https://a", "one")
    store.store("https://b", "two")
    assert (store.token("https://a"), store.token("https://b")) == ("one", "two")
    assert Path(store.path).stat().st_mode & 0o777 == 0o600
    store.store("https://a", "")
    with pytest.raises(CalabashError, match="no token") as told:
        store.token("https://a")
    assert told.value.hint == "calabash login https://a"
    Path(store.path).chmod(0o644)
    with pytest.raises(CalabashError, match="others can read"):
        store.token("https://b")
