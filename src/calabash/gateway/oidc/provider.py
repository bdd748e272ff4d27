"""Client of the OpenID Connect provider: its metadata, its keys, and the exchange of a code for claims.

All replies are bounded in size and time and decoded to the fields that are used. Metadata and keys are cached for
KEPT_S. If a token names an unknown key, the keys are requested again, at most every AGAIN_S.
"""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Meta

from calabash.api.gateway import OidcSettings, trusted_url
from calabash.gateway.oidc.token import UnknownKeyError, verified_claims
from calabash.model.errors import CalabashError, Reason
from calabash.transport.web import WebAnswer, WebClient

KEPT_S = 3600.0
AGAIN_S = 10.0  # shortest time between two requests for the keys
ASK_S = 15.0
AT_ONCE = 4
KEYS_MAX = 100

Shape = TypeVar("Shape")
Url = Annotated[str, Meta(min_length=1, max_length=2048)]


class ProviderDescription(msgspec.Struct, kw_only=True, frozen=True):
    """Fields of the provider's metadata document that the gateway uses, with the names of OpenID Connect Discovery."""

    issuer: Url
    authorization_endpoint: Url
    token_endpoint: Url
    jwks_uri: Url
    userinfo_endpoint: str = ""
    end_session_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


class ProviderKeys(msgspec.Struct, kw_only=True, frozen=True):
    """JSON Web Key Set of the provider."""

    keys: Annotated[list[dict[str, Any]], Meta(max_length=KEYS_MAX)]


class TokenAnswer(msgspec.Struct, kw_only=True, frozen=True):
    """Reply of the token endpoint."""

    id_token: str
    access_token: str = ""
    token_type: str = ""


class TokenRefusal(msgspec.Struct, kw_only=True, frozen=True):
    """Error reply of the token endpoint."""

    error: Annotated[str, Meta(max_length=1000)] = ""


class Provider:
    """Client of one provider, used by one event loop.

    Args:
        settings: the provider and this client.
        secret: the client's secret; "" for a public client.
        web: HTTP client.
        clock: monotonic seconds.
    """

    def __init__(
        self, settings: OidcSettings, secret: str, web: WebClient, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._secret, self._web, self._clock = settings, secret, web, clock
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="oidc")
        self._lock = threading.Lock()
        self._described: tuple[float, ProviderDescription] | None = None
        self._keys: tuple[float, Sequence[Mapping[str, Any]]] | None = None

    async def description(self) -> ProviderDescription:
        """Return the provider's metadata.

        Raises:
            CalabashError: UNREACHABLE or TIMEOUT if the provider does not answer, or describes another issuer than
                configured.
        """
        return await self._within(self._description)

    async def claims(self, code: str, *, verifier: str, nonce: str, redirect: str) -> dict[str, Any]:
        """Exchange a code for the verified claims of its user.

        Args:
            code: authorization code of the provider's answer.
            verifier: PKCE verifier of the attempt.
            nonce: nonce of the attempt.
            redirect: redirect URI of the attempt.

        Raises:
            CalabashError: NOT_AUTHENTICATED if the provider refuses the code or its ID token is not valid, UNREACHABLE
                or TIMEOUT if it does not answer.
        """
        return await self._within(lambda: self._claims(code, verifier, nonce, redirect))

    async def _within(self, call: Callable[[], Shape]) -> Shape:
        try:
            async with asyncio.timeout(2 * ASK_S):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except TimeoutError:
            raise _unusable("it takes too long to answer", Reason.TIMEOUT) from None

    def _description(self) -> ProviderDescription:
        with self._lock:
            known = self._described
            if known is not None and self._clock() - known[0] < KEPT_S:
                return known[1]
            issuer = self._settings.issuer
            url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
            found = _decoded(self._web.ask("GET", url), ProviderDescription)
            if found.issuer != issuer:
                raise _unusable(f"its issuer is {found.issuer[:80]!r}, not {issuer!r}")
            ends = [found.authorization_endpoint, found.token_endpoint, found.jwks_uri]
            ends += filter(None, (found.userinfo_endpoint, found.end_session_endpoint))
            if any(not trusted_url(end) for end in ends):
                raise _unusable("it names an address without TLS")
            self._described = (self._clock(), found)
            return found

    def _known_keys(self, *, again: bool) -> Sequence[Mapping[str, Any]]:
        """Return the provider's keys, from the cache if that is recent enough.

        Args:
            again: False to accept a cache of up to KEPT_S seconds; True, for a token with an unknown key, up to
                AGAIN_S.
        """
        uri = self._description().jwks_uri
        with self._lock:
            if self._keys is None or self._clock() - self._keys[0] > (AGAIN_S if again else KEPT_S):
                self._keys = (self._clock(), _decoded(self._web.ask("GET", uri), ProviderKeys).keys)
            return self._keys[1]

    def _claims(self, code: str, verifier: str, nonce: str, redirect: str) -> dict[str, Any]:
        answer = self._exchanged(code, verifier, redirect)
        settings = self._settings
        asked = {"issuer": settings.issuer, "client_id": settings.client_id, "nonce": nonce}
        try:
            claims = verified_claims(answer.id_token, self._known_keys(again=False), **asked)
        except UnknownKeyError:  # the provider may have rotated its keys
            claims = verified_claims(answer.id_token, self._known_keys(again=True), **asked)
        end = self._description().userinfo_endpoint
        wanted = {settings.groups_claim} if settings.groups else set()
        if not wanted <= claims.keys() and end and answer.access_token:
            more = _decoded(
                self._web.ask("GET", end, headers={"Authorization": f"Bearer {answer.access_token}"}), dict[str, Any]
            )
            if more.get("sub") != claims["sub"]:
                raise _unusable("its user info is for another user than its ID token")
            claims = {**more, **claims}
        return claims

    def _exchanged(self, code: str, verifier: str, redirect: str) -> TokenAnswer:
        described, settings = self._description(), self._settings
        body = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect,
            "code_verifier": verifier,
            "client_id": settings.client_id,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        if self._secret and "client_secret_basic" in described.token_endpoint_auth_methods_supported:
            pair = f"{quote(settings.client_id, safe='')}:{quote(self._secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif self._secret:
            body["client_secret"] = self._secret
        answer = self._web.ask("POST", described.token_endpoint, urlencode(body).encode(), headers=headers)
        if answer.status in {400, 401}:
            try:
                said = msgspec.json.decode(answer.content, type=TokenRefusal).error
            except msgspec.MsgspecError:
                said = ""
            raise CalabashError(
                f"the provider refuses the code{f': {_plain(said)}' if said else ''}",
                reason=Reason.NOT_AUTHENTICATED,
                hint="log in again",
            )
        return _decoded(answer, TokenAnswer)


def _decoded(answer: WebAnswer, shape: type[Shape]) -> Shape:
    if answer.status != 200:
        raise _unusable(f"it answers with status {answer.status}")
    try:
        return msgspec.json.decode(answer.content, type=shape)
    except msgspec.MsgspecError as error:
        raise _unusable(f"its reply cannot be decoded: {_plain(str(error))}") from None


def _unusable(why: str, reason: Reason = Reason.UNREACHABLE) -> CalabashError:
    return CalabashError(
        f"the provider cannot be used: {why}", reason=reason, hint="try again, or ask an administrator for a login link"
    )


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:100]
