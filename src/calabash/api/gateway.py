"""Settings of the gateway: section ``[console]`` of ``pool.toml``, and the order with which the pool starts the gateway."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from calabash.model.errors import CalabashError, Reason
from calabash.model.tenancy import Member, Role

# Header with the console session of a request. A browser sends it to the gateway together with a proof, and the gateway
# sends it to the pool together with the gateway's credential.
SESSION_HEADER = "calabash-session"

Amount = Annotated[int, Meta(ge=1, le=1_000_000)]


class GatewayLimits(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Limits of the gateway. A client is a token, a session, or a peer without either: a local user or an IP address.

    Args:
        requests_per_second: mean rate of the requests of one client.
        requests_at_once: requests of one client that may come in a burst.
        requests_per_second_per_user: mean rate of all tokens of one user; if it is not set, twice the rate of one client.
        requests_at_once_per_user: burst of all tokens of one user; if it is not set, twice the burst of one client.
        refused_per_minute: refused requests of one peer, beyond which replies are delayed.
        connections: open connections of all clients.
        connections_per_address: open connections of one client.
        waiting: requests that wait for a reply of the pool.
        waiting_per_user: requests of one user or session that wait for a reply of the pool.
        watchers: open watches of all users.
        watchers_per_user: open watches of one user.
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
    """Rule that gives the members of an OIDC group a role.

    Args:
        group: name of the group in the claim ``groups_claim``.
        role: role that the members get.
        tenant: tenant in which they get the role; empty: the platform.
        project: project of the tenant in which they get the role; empty: all projects.
    """

    group: Annotated[str, Meta(min_length=1, max_length=256)]
    role: Literal["admin", "operator", "tenant-admin", "member", "viewer"]
    tenant: Annotated[str, Meta(max_length=63)] = ""
    project: Annotated[str, Meta(max_length=63)] = ""


class OidcSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Settings of the OpenID Connect provider (section ``[console.oidc]``). Single sign-on is off while ``issuer`` is empty.

    Args:
        issuer: URL of the provider, exactly as in its tokens.
        client_id: client ID of the console.
        client_secret_file: file with the client secret, readable by its owner only; empty for a public client.
        name: text of the login button.
        scopes: scopes that the console requests from the provider.
        url: URL of the console for browsers; empty: the URL that each browser uses.
        authority: PEM file of the CA that signs the provider's certificate; empty: the system's CAs.
        groups_claim: claim with the groups to which ``groups`` refers.
        groups: rules that give members of groups their roles.
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
    """Settings of the web console and the API over TCP (section ``[console]``).

    Args:
        listen: address HOST:PORT of the console, or ``off``.
        hosts: host names that browsers may use, besides its addresses and ``localhost``.
        certificate: PEM file with the certificate for TLS; without one, only loopback addresses are served.
        key: PEM file with the key of the certificate.
        insecure: other addresses than loopback addresses are served without TLS.
        proxies: addresses whose headers ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are trusted.
        user: user ID of the gateway process if the pool runs as root.
        limits: limits of the gateway.
        oidc: OpenID Connect provider.
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
    """Order of the pool to the gateway, one line on standard input. The gateway exits when its standard input is closed.

    ``pool``: address of the pool. ``credential``: token that permits the gateway to exchange login codes and to create sessions
    for users that an OIDC provider has authenticated, and nothing else. ``listener``: number of the listening file descriptor.
    ``user``: user ID to which the gateway switches; 0: none.
    """

    pool: str
    credential: str
    listener: int
    user: int
    console: ConsoleSettings


def trusted_url(url: str) -> bool:
    """Return True for an HTTPS URL, and for an HTTP URL of a loopback address."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host in {"127.0.0.1", "::1"}))


def checked_oidc(settings: OidcSettings) -> OidcSettings:
    """Return the settings if they are valid. Raises CalabashError(BAD_FILE)."""
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
        Member(
            user=rule.group, role=Role(rule.role), tenant=rule.tenant, project=rule.project
        )  # raises CalabashError for an invalid role
    return settings


def checked_listen(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT`` and return host and port. Raises CalabashError(BAD_REQUEST)."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        example = f"127.0.0.1:{text}" if text.isascii() and text.isdigit() and int(text) <= 65_535 else "127.0.0.1:7432"
        raise CalabashError(f"--console {text[:80]!r} is not HOST:PORT", hint=f"write it like {example}, or off")
    return host, int(port)
