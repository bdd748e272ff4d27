"""Tokens: who may use how much of a server, signed by it, so that the server needs no list of those it has given out.

A token is one line, ``calabash1.CLAIMS.SIGNATURE``: the claims as JSON, then an Ed25519 signature over everything before its
dot, both base64url without padding. The claims name the server and the key that signed them. A server knows several keys: one
signs, those before it are known until a date. Pure: time and keys are arguments.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.broker.crypto import sign, signed
from calabash.model.errors import CalabashError, Reason
from calabash.model.names import NAME_PATTERN

PREFIX = "calabash1"
TOKEN_CHARACTERS_MAX = 2048

HexId = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
Seconds = Annotated[int, Meta(ge=0, le=1 << 40)]


class TokenClaims(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What a token says. ``gpus`` and ``memory_mib`` bound the sum of everything that is held with it at a time, 0 of memory:
    not bounded; ``cores`` is the largest share of a card that may be asked. Times are seconds since the epoch."""

    server: HexId
    key: HexId
    id: HexId
    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    gpus: Annotated[int, Meta(ge=0, le=4096)]
    memory_mib: Annotated[int, Meta(ge=0, le=1 << 40)]
    cores: Annotated[int, Meta(ge=1, le=100)]
    issued: Seconds
    expires: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """A key whose signatures count, until ``ends`` where that is not None."""

    public: bytes
    ends: float | None = None


def issue(claims: TokenClaims, secret: bytes) -> str:
    """The token's text."""
    head = f"{PREFIX}.{_coded(msgspec.json.encode(claims))}"
    return f"{head}.{_coded(sign(secret, head.encode()))}"


def read_token(text: str, *, server: str, keys: Mapping[str, KnownKey], now: float) -> TokenClaims:
    """What a token says, when this server has signed it. Its own end and whether it is revoked is asked by :func:`ended`.

    Raises CalabashError(NOT_PERMITTED) that says which of all that is wrong.
    """
    head, _, signature = text.rpartition(".")
    prefix, _, claims_text = head.partition(".")
    if len(text) > TOKEN_CHARACTERS_MAX or prefix != PREFIX or not claims_text:
        raise _refused("this is no token", hint="use the file that `calabash server token create` has written")
    try:
        claims = msgspec.json.decode(_decoded(claims_text), type=TokenClaims)
        signed_with = _decoded(signature)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        raise _refused(
            "the token is damaged", hint="copy the whole file that `calabash server token create` has written"
        ) from None
    if claims.server != server:
        raise _refused("the token is of another server", hint="use the token that this server's owner has made")
    key = keys.get(claims.key)
    if key is None or (key.ends is not None and now >= key.ends):
        raise _refused(
            f"the key that signed token {claims.name} counts no longer", hint="ask the server's owner for a new token"
        )
    if not signed(key.public, head.encode(), signed_with):
        raise _refused("the token's signature is wrong", hint="ask the server's owner for a new token")
    return claims


def ended(claims: TokenClaims, *, revoked: bool, now: float) -> str:
    """Why a token that this server has signed gives no right any more; "" while it does."""
    if revoked:
        return f"token {claims.name} was revoked"
    if now >= claims.expires:
        return f"token {claims.name} has expired"
    return ""


def require_live(claims: TokenClaims, *, revoked: bool, now: float) -> None:
    """Raises NOT_PERMITTED for a token that has ended."""
    why = ended(claims, revoked=revoked, now=now)
    if why:
        raise _refused(why, hint="ask the server's owner for a new token")


def _refused(message: str, *, hint: str) -> CalabashError:
    return CalabashError(message, reason=Reason.NOT_PERMITTED, hint=hint)


def _coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    """Raises ValueError for anything but the one text that these bytes have."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if _coded(data) != text:
        raise ValueError("not the canonical form")
    return data
