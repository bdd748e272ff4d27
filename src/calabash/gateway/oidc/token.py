"""Verify an ID token: signature, issuer, audience, times, authorized party and nonce.

PyJWT checks the signature, issuer, audience and times. This module adds the checks that it leaves to its users: only
asymmetric algorithms are accepted, one key of the provider's set must match and be long enough, and the authorized
party and the nonce must be those of this client and attempt.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from calabash.model.errors import CalabashError, Reason

ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
LEEWAY_S = 60.0
RSA_BITS_MIN = 2048
TOKEN_CHARACTERS_MAX = 64 << 10
SUBJECT_CHARACTERS_MAX = 255
_FAMILY = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


class UnknownKeyError(CalabashError):
    """Error for a token that is signed with a key that is not in the key set."""


def verified_claims(
    token: str, keys: Iterable[Mapping[str, Any]], *, issuer: str, client_id: str, nonce: str
) -> dict[str, Any]:
    """Verify an ID token and return its claims.

    Args:
        token: the ID token.
        keys: the provider's key set (JWKs).
        issuer: expected issuer.
        client_id: expected audience.
        nonce: nonce of the attempt to log in.

    Raises:
        UnknownKeyError: if no key of the set matches.
        CalabashError: NOT_AUTHENTICATED with the failed check.
    """
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise _wrong(f"it has more than {TOKEN_CHARACTERS_MAX} characters")
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError as error:
        raise _wrong(str(error)) from None
    algorithm = header.get("alg")
    if algorithm not in ALGORITHMS:
        raise _wrong(f"algorithm {str(algorithm)[:20]!r} is not accepted")
    claims = _signed(token, _key(keys, algorithm, header.get("kid")), algorithm, issuer=issuer, client_id=client_id)
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if (several or "azp" in claims) and claims.get("azp") != client_id:
        raise _wrong("it was issued for another client")
    said = claims.get("nonce")
    if not isinstance(said, str) or not hmac.compare_digest(said.encode(), nonce.encode()):
        raise _wrong("it belongs to another attempt to log in")
    subject = claims["sub"]
    if not subject or len(subject) > SUBJECT_CHARACTERS_MAX or not subject.isprintable():
        raise _wrong("its subject is empty, too long or not printable")
    return claims


def load_algorithms() -> None:
    """Verify a signature of each key family, so that all modules are loaded before privileges are dropped."""
    keys: list[tuple[str, Any]] = [
        ("RS256", rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS_MIN)),
        ("ES256", ec.generate_private_key(ec.SECP256R1())),
        ("EdDSA", ed25519.Ed25519PrivateKey.generate()),
    ]
    for algorithm, key in keys:
        shown = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
        jwt.decode(jwt.encode({}, key, algorithm), jwt.PyJWK(shown, algorithm), algorithms=[algorithm])


def _signed(token: str, key: jwt.PyJWK, algorithm: str, *, issuer: str, client_id: str) -> dict[str, Any]:
    try:
        return jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            issuer=issuer,
            audience=client_id,
            leeway=LEEWAY_S,
            options={"require": ["iss", "sub", "aud", "exp", "iat"]},
        )
    except jwt.PyJWTError as error:
        raise _wrong(str(error)) from None
    except (TypeError, ValueError) as error:
        raise _wrong(f"it cannot be decoded: {error}") from None


def _key(keys: Iterable[Mapping[str, Any]], algorithm: str, name: object) -> jwt.PyJWK:
    """Return the key with which a token must be verified.

    Args:
        keys: key set of the provider.
        algorithm: algorithm of the token's signature.
        name: key ID of the token; None if it has none, and then exactly one key must be usable with the algorithm.

    Raises:
        UnknownKeyError: if no key matches, or more than one.
    """
    family = _FAMILY[algorithm[:2]]
    fitting = [
        key
        for key in keys
        if key.get("kty") == family and key.get("use", "sig") == "sig" and key.get("alg", algorithm) == algorithm
    ]
    named = [key for key in fitting if key.get("kid") == name] if name is not None else fitting
    if len(named) != 1:
        raise UnknownKeyError(
            "the provider's ID token is signed with a key that is not in its key set",
            reason=Reason.NOT_AUTHENTICATED,
            hint="log in again",
        )
    try:
        found = jwt.PyJWK(dict(named[0]), algorithm)
    except jwt.PyJWTError as error:
        raise _wrong(f"the provider's key cannot be decoded: {error}") from None
    if isinstance(found.key, rsa.RSAPublicKey) and found.key.key_size < RSA_BITS_MIN:
        raise _wrong(f"the provider's key has {found.key.key_size} bits, less than {RSA_BITS_MIN}")
    return found


def _wrong(why: str) -> CalabashError:
    return CalabashError(
        f"the provider's ID token is refused: {why[:200]}", reason=Reason.NOT_AUTHENTICATED, hint="log in again"
    )
