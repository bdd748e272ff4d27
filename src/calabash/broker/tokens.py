"""Sign and verify tokens, which state how many devices of a server an account may use.

The server signs its tokens, so it needs no list of valid ones. A token is one line, ``calabash1.CLAIMS.SIGNATURE``: the
claims as JSON, then an Ed25519 signature of everything before the last dot, both base64url without padding. The claims
name the server and the signing key. A server signs with its newest key and accepts earlier keys until a date. No I/O:
time and keys are arguments.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.broker.crypto import sign, verify_signature
from calabash.model.errors import CalabashError, Reason
from calabash.model.names import NAME_PATTERN

PREFIX = "calabash1"
TOKEN_CHARACTERS_MAX = 2048

HexId = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
Seconds = Annotated[int, Meta(ge=0, le=1 << 40)]


class TokenClaims(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Claims of a token.

    Args:
        server: ID of the server that accepts the token.
        key: ID of the key that signed it.
        id: ID of the token.
        name: account of the token; several tokens may have the same name.
        gpus: most devices that the token may hold at a time.
        memory_mib: most memory that the token may hold at a time, over all devices; 0 for no limit.
        cores: largest compute share of one device in percent.
        issued: time of issue in seconds since the epoch.
        expires: end of the token in seconds since the epoch.
    """

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
    """Public key whose signatures are accepted until ``ends`` (seconds since the epoch; None for no end)."""

    public: bytes
    ends: float | None = None


def issue(claims: TokenClaims, secret: bytes) -> str:
    """Return the text of a token with the claims, signed with a private key."""
    head = f"{PREFIX}.{_coded(msgspec.json.encode(claims))}"
    return f"{head}.{_coded(sign(secret, head.encode()))}"


def read_token(text: str, *, server: str, keys: Mapping[str, KnownKey], now: float) -> TokenClaims:
    """Verify the server, key and signature of a token and return its claims.

    Does not check whether the token itself has expired or was revoked: see :func:`end_reason`.

    Args:
        text: the token.
        server: ID of this server.
        keys: accepted public keys by their ID.
        now: seconds since the epoch.

    Raises:
        CalabashError: NOT_PERMITTED with the check that failed.
    """
    head, _, signature = text.rpartition(".")
    prefix, _, claims_text = head.partition(".")
    if len(text) > TOKEN_CHARACTERS_MAX or prefix != PREFIX or not claims_text:
        raise _refused(
            "this is not a token", hint="use the file that `calabash remote server token create` has written"
        )
    try:
        claims = msgspec.json.decode(_decoded(claims_text), type=TokenClaims)
        signed_with = _decoded(signature)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        raise _refused(
            "the token is damaged", hint="copy the whole file that `calabash remote server token create` has written"
        ) from None
    if claims.server != server:
        raise _refused("the token is for another server", hint="use a token that this server's owner has created")
    key = keys.get(claims.key)
    if key is None or (key.ends is not None and now >= key.ends):
        raise _refused(
            f"the key that signed token {claims.name} is no longer valid", hint="ask the server's owner for a new token"
        )
    if not verify_signature(key.public, head.encode(), signed_with):
        raise _refused("the token's signature is invalid", hint="ask the server's owner for a new token")
    return claims


def end_reason(claims: TokenClaims, *, revoked: bool, now: float) -> str:
    """Return the reason why a verified token is no longer valid; "" if it is valid."""
    if revoked:
        return f"token {claims.name} was revoked"
    if now >= claims.expires:
        return f"token {claims.name} has expired"
    return ""


def require_live(claims: TokenClaims, *, revoked: bool, now: float) -> None:
    """Raise NOT_PERMITTED if the token was revoked or has expired."""
    why = end_reason(claims, revoked=revoked, now=now)
    if why:
        raise _refused(why, hint="ask the server's owner for a new token")


def _refused(message: str, *, hint: str) -> CalabashError:
    return CalabashError(message, reason=Reason.NOT_PERMITTED, hint=hint)


def _coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    """Decode base64url text without padding.

    Raises:
        ValueError: if the text is not the canonical encoding of its bytes.
    """
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if _coded(data) != text:
        raise ValueError("not the canonical form")
    return data
