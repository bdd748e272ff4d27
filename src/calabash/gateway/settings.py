"""Settings and shared objects of a running gateway."""

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

USER_FACTOR = 2  # default limit of requests for all tokens of a user, as a multiple of the limit of one token


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """Shared objects of a running gateway.

    Attributes:
        pool: client of the pool.
        credential: the gateway's own credential, for the exchange of login codes and for requests of sessions.
        hosts: host names under which the gateway may be reached.
        static: static files.
        settings: settings of the console.
        requests: rate limit of requests for each token, session or peer (a local user or an address).
        user_requests: rate limit of requests for each user, over all tokens of the user.
        refusals: rate limit of refused credentials for each peer.
        sessions: derives the keys of console sessions and verifies the proofs of requests.
        principals: cache of the users of tokens.
        oidc: login at an OpenID Connect provider, if configured.
    """

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
    def from_settings(cls, settings: ConsoleSettings, pool: PoolStreams, *, credential: str) -> Gateway:
        """Return a gateway to the pool.

        Args:
            settings: settings of the console.
            pool: client of the pool.
            credential: credential that the pool has created for this gateway.

        Raises:
            CalabashError: BAD_FILE if a file of the provider's settings cannot be read.
        """
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
