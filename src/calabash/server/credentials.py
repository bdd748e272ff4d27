"""Whose request it is, as the request shows it: a bearer token, or the cookie of a session with proof that the page sent it.

The gateway decides nothing by it: the token goes to the pool with every question. What is asked with a cookie and changes
something needs the session's CSRF token as well, which only a page of ours can read: a MAC of the session, so nothing is
stored. Browsers that say so (``Sec-Fetch-Site``, ``Origin``) must say that the page is ours.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from calabash.model.errors import CalabashError, Reason

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
CSRF_HEADER = "x-csrf-token"
_COOKIE = "calabash_session"
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{8,512}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A token, empty for none, and whether a browser sent it by itself, as a cookie."""

    token: str
    cookie: bool = False

    @property
    def csrf(self) -> str:
        """What a page of this session sends along."""
        return csrf_of(self.token) if self.cookie else ""


def csrf_of(session: str) -> str:
    """The CSRF token of a session."""
    mac = hmac.new(session.encode(), b"calabash csrf", hashlib.sha256).digest()
    return base64.urlsafe_b64encode(mac).decode().rstrip("=")


def cookie_name(*, secure: bool) -> str:
    """Over TLS a name that no other host and no plain connection can set."""
    return f"__Host-{_COOKIE}" if secure else _COOKIE


def credential_of(headers: Mapping[str, str], *, secure: bool) -> Credential:
    """What the request shows. Raises NOT_PERMITTED for an Authorization that is no bearer token."""
    said = headers.get("authorization", "")
    if said:
        scheme, _, token = said.partition(" ")
        if scheme.lower() != "bearer" or not _TOKEN.match(token.strip()):
            raise CalabashError(
                "the Authorization header is not `Bearer TOKEN`",
                reason=Reason.NOT_PERMITTED,
                hint="make a token with `calabash token create`",
            )
        return Credential(token=token.strip())
    jar = SimpleCookie()
    try:
        jar.load(headers.get("cookie", ""))
    except CookieError:
        return Credential(token="")
    morsel = jar.get(cookie_name(secure=secure))
    if morsel is None or not _TOKEN.match(morsel.value):
        return Credential(token="")
    return Credential(token=morsel.value, cookie=True)


def require_own_page(headers: Mapping[str, str], *, scheme: str) -> None:
    """Raises NOT_PERMITTED for what a browser says that another site's page sent."""
    site = headers.get("sec-fetch-site", "")
    origin = headers.get("origin", "")
    if site not in {"", "same-origin", "none"} or (origin and origin != f"{scheme}://{headers.get('host', '')}"):
        raise CalabashError(
            "the request comes from a page of another site",
            reason=Reason.NOT_PERMITTED,
            hint="reload the page of the console",
        )


def require_csrf(credential: Credential, shown: str) -> None:
    """Raises NOT_PERMITTED where a browser's session asks for a change without the page's token."""
    if credential.cookie and not hmac.compare_digest(credential.csrf.encode(), shown.encode()):
        raise CalabashError(
            "the page's token is missing or of another session",
            reason=Reason.NOT_PERMITTED,
            hint="reload the page and try again; programs use `Authorization: Bearer` instead of a cookie",
        )


def session_cookie(token: str, *, secure: bool) -> str:
    """The header that gives a browser its session; an empty token takes it away."""
    end = "" if token else "; Max-Age=0"
    return f"{cookie_name(secure=secure)}={token}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}{end}"
