"""How the gateway is to serve: the section ``[console]`` of ``pool.toml``, and what the pool tells the gateway it starts."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from calabash.model.errors import CalabashError, Reason
from calabash.model.tenancy import Member, Role

# Names the session of the console that a request is of: from a browser to the gateway beside a proof, from the gateway to the
# pool beside the gateway's credential.
SESSION_HEADER = "calabash-session"

Amount = Annotated[int, Meta(ge=1, le=1_000_000)]


class GatewayLimits(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Bounds of one token or session, or of one peer that shows none: a local user or an address.

    ``connections`` in all, ``connections_per_address`` of one peer or credential; refusals beyond ``refused_per_minute`` of one
    peer are held back. All tokens of one user together may make ``requests_per_second_per_user``, and
    ``requests_at_once_per_user``; None: twice as many as one token. ``waiting`` requests may be without an answer of the pool,
    ``waiting_per_user`` of one user or session; ``watchers`` may watch, ``watchers_per_user`` of one user.
    """

    requests_per_second: Amount = 100
    requests_at_once: Amount = 400
    requests_per_second_per_user: Amount | None = None
    requests_at_once_per_user: Amount | None = None
    refused_per_minute: Amount = 30
    connections: Amount = 1000
    connections_per_address: Amount = 400
    waiting: Amount = 256
    waiting_per_user: Amount = 64
    watchers: Amount = 200
    watchers_per_user: Amount = 32


class OidcGroup(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Whoever the provider says is in ``group`` is ``role`` of ``tenant``, or of the platform where that is empty."""

    group: Annotated[str, Meta(min_length=1, max_length=256)]
    role: Literal["admin", "operator", "tenant-admin", "member", "viewer"]
    tenant: Annotated[str, Meta(max_length=63)] = ""
    project: Annotated[str, Meta(max_length=63)] = ""


class OidcSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Who says who somebody is: a provider of OpenID Connect. There is none while ``issuer`` is empty.

    ``issuer``: its URL, exactly as it names itself. ``client_id``: what it calls this console; ``client_secret_file``: where
    the secret for that is, a file that nobody else can read; empty for a client without one. ``name``: what its button says.
    ``url``: where browsers find the console; empty: where each found it. ``authority``: PEM file of whoever signs the
    provider's certificate. ``groups_claim``: which claim says the groups that ``groups`` is about.
    """

    issuer: Annotated[str, Meta(max_length=256)] = ""
    client_id: Annotated[str, Meta(max_length=256)] = ""
    client_secret_file: str = ""
    name: Annotated[str, Meta(min_length=1, max_length=64)] = "single sign-on"
    scopes: Annotated[list[str], Meta(max_length=20)] = msgspec.field(
        default_factory=lambda: ["openid", "profile", "email"]
    )
    url: Annotated[str, Meta(max_length=256)] = ""
    authority: str = ""
    groups_claim: Annotated[str, Meta(min_length=1, max_length=128)] = "groups"
    groups: Annotated[list[OidcGroup], Meta(max_length=1000)] = []


class ConsoleSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Where and as whom the console and the API are served.

    ``listen``: HOST:PORT, or ``off``. ``hosts``: names that browsers may use for it, beside its addresses and ``localhost``.
    ``certificate`` and ``key``: PEM files, for TLS; without them it serves loopback addresses only, unless ``insecure``.
    ``proxies``: addresses whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are believed.
    ``user``: as whom the gateway of a pool of root runs. ``oidc``: the section ``[console.oidc]``.
    """

    listen: str = "127.0.0.1:7432"
    hosts: list[str] = []
    certificate: str = ""
    key: str = ""
    insecure: bool = False
    proxies: list[str] = []
    user: Annotated[int, Meta(ge=1, le=1 << 31)] = 63_999
    limits: GatewayLimits = GatewayLimits()
    oidc: OidcSettings = OidcSettings()


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


def trusted_url(url: str) -> bool:
    """Whether it is HTTPS, or HTTP to this very machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host in {"127.0.0.1", "::1"}))


def checked_oidc(settings: OidcSettings) -> OidcSettings:
    """The settings, if they can be. Raises CalabashError(BAD_FILE)."""
    wrong = ""
    if not settings.issuer:
        return settings
    if not trusted_url(settings.issuer) or "?" in settings.issuer or "#" in settings.issuer:
        wrong = f"issuer {settings.issuer!r} is not an https:// URL without query and fragment"
    elif not settings.client_id:
        wrong = "client_id is missing"
    elif settings.url and not trusted_url(settings.url):
        wrong = f"url {settings.url!r} is not an https:// URL"
    if wrong:
        raise CalabashError(
            f"[console.oidc]: {wrong}", reason=Reason.BAD_FILE, hint="see docs/how-to/log-in-by-oidc.md"
        )
    for rule in settings.groups:
        Member(user=rule.group, role=Role(rule.role), tenant=rule.tenant, project=rule.project)  # says what cannot be
    return settings


def checked_listen(text: str) -> tuple[str, int]:
    """The host and port of ``HOST:PORT``. Raises CalabashError(BAD_REQUEST)."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        example = f"127.0.0.1:{text}" if text.isascii() and text.isdigit() and int(text) <= 65_535 else "127.0.0.1:7432"
        raise CalabashError(f"--console {text[:80]!r} is not HOST:PORT", hint=f"for example {example}, or off")
    return host, int(port)
