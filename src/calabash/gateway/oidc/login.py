"""Log in at the provider: redirect the browser there, and exchange the returned code for a subject."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from calabash.adapters.host.files import private_text
from calabash.api.gateway import OidcSettings
from calabash.api.tenancy import SessionOrder
from calabash.gateway.oidc.attempt import Attempts
from calabash.gateway.oidc.provider import Provider
from calabash.gateway.oidc.token import load_algorithms
from calabash.model.errors import CalabashError, Reason
from calabash.transport.web import AddressRule, WebClient

BEGIN, BACK, SESSION, END = "/login/oidc", "/login/oidc/callback", "/login/oidc/session", "/login/oidc/end"
GROUPS_MAX = 1000
NAME_CHARACTERS_MAX = 256


class OidcLogin:
    """Login at one provider.

    Args:
        settings: the provider and this client.
        credential: the gateway's own credential, from which the key of attempts is derived.

    Raises:
        CalabashError: BAD_FILE if the client secret or the certificate authority cannot be read.
    """

    def __init__(self, settings: OidcSettings, *, credential: str) -> None:
        self.name = settings.name
        self._settings = settings
        self._attempts = Attempts(hashlib.sha256(b"calabash login " + credential.encode()).digest())
        web = WebClient(rule=AddressRule(everything=True), authority=settings.authority)
        secret = private_text(settings.client_secret_file) if settings.client_secret_file else ""
        self._provider = Provider(settings, secret, web)
        load_algorithms()

    async def begin(self, *, to: str, here: str) -> tuple[str, str]:
        """Begin an attempt; return the provider's URL for the browser and the ticket of the attempt.

        Args:
            to: page to show after the login.
            here: origin (scheme, host and port) under which the browser reaches the console.
        """
        described = await self._provider.description()
        attempt = self._attempts.begin(to=to, now_s=time.time())
        asked = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._redirect(here),
            "scope": " ".join(dict.fromkeys(("openid", *self._settings.scopes))),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": attempt.challenge,
            "code_challenge_method": "S256",
        }
        return _with(described.authorization_endpoint, asked), self._attempts.ticket(attempt)

    async def session_order(self, query: Mapping[str, str], ticket: str, *, here: str) -> tuple[SessionOrder, str]:
        """Verify the provider's answer; return the request for a session of its subject, and the page to show.

        Args:
            query: query of the URL to which the provider has redirected the browser.
            ticket: ticket of the attempt, which the page has kept.
            here: origin (scheme, host and port) under which the browser reaches the console.

        Raises:
            CalabashError: NOT_AUTHENTICATED if the answer is not valid, or another reason if the provider fails.
        """
        attempt = self._attempts.take(ticket, query.get("state", ""), now_s=time.time())
        described = await self._provider.description()
        issuer = query.get("iss", "")
        if issuer != described.issuer and (issuer or described.authorization_response_iss_parameter_supported):
            raise CalabashError(
                "the answer comes from another provider", reason=Reason.NOT_AUTHENTICATED, hint="log in again"
            )
        if not query.get("code") or "error" in query:
            said = "".join(c if c.isprintable() else "?" for c in query.get("error", "no code"))[:80]
            raise CalabashError(
                f"the provider did not log you in: {said}", reason=Reason.NOT_AUTHENTICATED, hint="log in again"
            )
        claims = await self._provider.claims(
            query["code"], verifier=attempt.verifier, nonce=attempt.nonce, redirect=self._redirect(here)
        )
        return self._order(claims), attempt.to

    async def logout_url(self, *, here: str) -> str:
        """Return the provider's logout URL; "" if the provider has none.

        After the logout, the provider redirects the browser to the console at origin ``here``.
        """
        described = await self._provider.description()
        if not described.end_session_endpoint:
            return ""
        asked = {"client_id": self._settings.client_id, "post_logout_redirect_uri": f"{self._url(here)}/login"}
        return _with(described.end_session_endpoint, asked)

    def _order(self, claims: Mapping[str, Any]) -> SessionOrder:
        named = claims.get(self._settings.groups_claim)
        groups = [named] if isinstance(named, str) else named if isinstance(named, list) else []
        verified = claims.get("email_verified") is True
        return SessionOrder(
            console=True,
            subject=f"{self._settings.issuer}|{claims['sub']}",
            name=_words(claims.get("preferred_username") or claims.get("name")),
            email=_words(claims.get("email")) if verified else "",
            groups=[g for g in groups if isinstance(g, str) and 0 < len(g) <= NAME_CHARACTERS_MAX][:GROUPS_MAX],
        )

    def _url(self, here: str) -> str:
        return self._settings.url.rstrip("/") or here

    def _redirect(self, here: str) -> str:
        return self._url(here) + BACK


def _with(url: str, asked: Mapping[str, str]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(asked)}"


def _words(said: object) -> str:
    return said[:NAME_CHARACTERS_MAX] if isinstance(said, str) and said.isprintable() else ""
