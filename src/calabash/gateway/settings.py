"""What all parts of one running gateway share."""

from __future__ import annotations

from dataclasses import dataclass, field

from calabash.adapters.pool.streams import PoolStreams
from calabash.api.gateway import ConsoleSettings
from calabash.gateway.api.principals import Principals
from calabash.gateway.oidc.login import OidcLogin
from calabash.gateway.serving.allowed_hosts import Hosts
from calabash.gateway.serving.rate_limits import Buckets
from calabash.gateway.serving.static import StaticFiles
from calabash.gateway.sessions.store import Sessions

USER_FACTOR = 2  # how many times the requests of one token all tokens of a user may make, unless the settings say it


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """``credential`` is the gateway's own, for the exchange of login codes and for requests of ``sessions``. ``requests`` are
    counted by token, session or peer, ``user_requests`` by user over all its tokens, ``refusals`` by peer. ``principals`` are
    the users of tokens. ``oidc``: where people log in, if anywhere."""

    pool: PoolStreams
    credential: str = field(repr=False)
    hosts: Hosts
    static: StaticFiles
    settings: ConsoleSettings
    requests: Buckets
    user_requests: Buckets
    refusals: Buckets
    sessions: Sessions
    principals: Principals
    oidc: OidcLogin | None = None

    @classmethod
    def of(cls, settings: ConsoleSettings, pool: PoolStreams, *, credential: str) -> Gateway:
        """A gateway to that pool. Raises CalabashError(BAD_FILE) for a provider that cannot be meant."""
        limits, sessions = settings.limits, Sessions(credential)
        return cls(
            pool=pool,
            credential=credential,
            hosts=Hosts(settings.hosts),
            static=StaticFiles(start=sessions.start),
            settings=settings,
            requests=Buckets(limits.requests_per_second, limits.requests_at_once),
            user_requests=Buckets(
                limits.requests_per_second_per_user or USER_FACTOR * limits.requests_per_second,
                limits.requests_at_once_per_user or USER_FACTOR * limits.requests_at_once,
            ),
            refusals=Buckets(limits.refused_per_minute / 60.0, limits.refused_per_minute),
            sessions=sessions,
            principals=Principals(pool),
            oidc=OidcLogin(settings.oidc, credential=credential) if settings.oidc.issuer else None,
        )
