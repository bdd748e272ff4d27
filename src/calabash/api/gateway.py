"""How the gateway is to serve: the section ``[console]`` of ``pool.toml``, and what the pool tells the gateway it starts."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Amount = Annotated[int, Meta(ge=1, le=1_000_000)]


class GatewayLimits(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What one token, and one address that shows none, may take. ``connections`` in all, ``connections_per_address`` of one."""

    requests_per_second: Amount = 100
    requests_at_once: Amount = 400
    refused_per_minute: Amount = 30
    connections: Amount = 1000
    connections_per_address: Amount = 400
    watchers: Amount = 200


class ConsoleSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Where and as whom the console and the API are served.

    ``listen``: HOST:PORT, or ``off``. ``hosts``: names that browsers may use for it, beside its addresses and ``localhost``.
    ``certificate`` and ``key``: PEM files, for TLS; without them it serves loopback addresses only, unless ``insecure``.
    ``proxies``: addresses whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are believed.
    ``user``: as whom the gateway of a pool of root runs.
    """

    listen: str = "127.0.0.1:7432"
    hosts: list[str] = []
    certificate: str = ""
    key: str = ""
    insecure: bool = False
    proxies: list[str] = []
    user: Annotated[int, Meta(ge=1, le=1 << 31)] = 63_999
    limits: GatewayLimits = GatewayLimits()


class GatewayOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What the pool tells the gateway on its standard input, in one line; when that ends, so does the gateway.

    ``credential`` exchanges login codes and vouches for who logged in elsewhere, and is good for nothing else.
    ``listener`` is the number of the descriptor that listens; ``user`` 0 keeps the user that it was started as.
    """

    pool: str
    credential: str
    listener: int
    user: int
    console: ConsoleSettings
