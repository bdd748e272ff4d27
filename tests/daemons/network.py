"""Pool whose gateway is reachable over TCP: two tenants with users of every role, and HTTP requests as clients send them."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from tests.daemons.world import World

from calabash.model.tenancy import Role

# No answer to a user of the other tenant may contain any of these.
SETTINGS = "[console.limits]\nrequests_per_second = 100000\nrequests_at_once = 100000\nrefused_per_minute = 100000\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    content: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.content)


@dataclass(slots=True)
class Network:
    """Gateway of one pool, and tokens of its users by name."""

    world: World
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return str(self.world.client.get("/v1/status")["console"])

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def ask(self, method: str, path: str, body: Any = None, *, token: str = "", **headers: str) -> Told:
        """Send one request on a connection of its own."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            named["Authorization"] = f"Bearer {token}"
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else msgspec.json.encode(body)
            connection.request(method, path, data, named)
            answer = connection.getresponse()
            return Told(
                status=answer.status, headers={k.lower(): v for k, v in answer.getheaders()}, content=answer.read()
            )
        finally:
            connection.close()

    def issue(self, user: str, **order: Any) -> dict[str, Any]:
        """Issue a token for a user."""
        issued: dict[str, Any] = self.world.client.post("/v1/tokens", {"user": user, **order})
        return issued

    def person(self, name: str, role: Role | None = None, tenant: str = "") -> None:
        """Create a user with a role, and its token."""
        self.world.client.put(f"/v1/users/{name}", {})
        if role is not None:
            self.world.client.put("/v1/members", {"user": name, "role": role, "tenant": tenant})
        self.tokens[name] = self.issue(name)["secret"]


@contextmanager
def network(home: Path, gpus: str = "2xT4") -> Iterator[Network]:
    """Run a pool with its gateway, which has no limit on the rate of requests."""
    world = World(home, gpus, options=("--console", "127.0.0.1:0"))
    try:
        home.mkdir(exist_ok=True)
        (home / "pool.toml").write_text(SETTINGS)
        world.up()
        yield Network(world)
    finally:
        world.close()
