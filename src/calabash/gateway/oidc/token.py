"""What makes an ID token good: whose signature, for whom, of whom, when, and for which attempt.

PyJWT checks signatures and times. What it leaves to its users is here: which algorithms are taken (signatures with a private
key alone), which key of the provider's set fits, how long a key is at least, the authorized party, the nonce.
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
    """It is signed with a key that is not in the set."""


def verified(
    token: str, keys: Iterable[Mapping[str, Any]], *, issuer: str, client_id: str, nonce: str
) -> dict[str, Any]:
    """The claims of a token that is good. Raises UnknownKeyError, or CalabashError with NOT_AUTHENTICATED and what is wrong.

    Args:
        keys: the provider's, as in its set (JWK).
    """
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise _wrong("it is too long")
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError as error:
        raise _wrong(str(error)) from None
    algorithm = header.get("alg")
    if algorithm not in ALGORITHMS:
        raise _wrong(f"algorithm {str(algorithm)[:20]!r} is not one that is taken")
    claims = _signed(token, _key(keys, algorithm, header.get("kid")), algorithm, issuer=issuer, client_id=client_id)
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if (several or "azp" in claims) and claims.get("azp") != client_id:
        raise _wrong("it was made for another client")
    said = claims.get("nonce")
    if not isinstance(said, str) or not hmac.compare_digest(said.encode(), nonce.encode()):
        raise _wrong("it belongs to another attempt to log in")
    subject = claims["sub"]
    if not subject or len(subject) > SUBJECT_CHARACTERS_MAX or not subject.isprintable():
        raise _wrong("its subject is not usable")
    return claims


def load_algorithms() -> None:
    """Verify a signature of each family of keys: what is loaded on the way may not be readable later."""
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
        raise _wrong(f"it is not understood: {error}") from None


def _key(keys: Iterable[Mapping[str, Any]], algorithm: str, name: object) -> jwt.PyJWK:
    """The key of that name, or the only one that fits where the token names none."""
    family = _FAMILY[algorithm[:2]]
    fitting = [
        key
        for key in keys
        if key.get("kty") == family and key.get("use", "sig") == "sig" and key.get("alg", algorithm) == algorithm
    ]
    named = [key for key in fitting if key.get("kid") == name] if name is not None else fitting
    if len(named) != 1:
        raise UnknownKeyError(
            "its ID token is signed with a key that the provider does not show",
            reason=Reason.NOT_AUTHENTICATED,
            hint="log in again",
        )
    try:
        found = jwt.PyJWK(dict(named[0]), algorithm)
    except jwt.PyJWTError as error:
        raise _wrong(f"the provider's key is not understood: {error}") from None
    if isinstance(found.key, rsa.RSAPublicKey) and found.key.key_size < RSA_BITS_MIN:
        raise _wrong(f"the provider's key has {found.key.key_size} bits, at least {RSA_BITS_MIN} are needed")
    return found


def _wrong(why: str) -> CalabashError:
    return CalabashError(
        f"the provider's ID token is refused: {why[:200]}", reason=Reason.NOT_AUTHENTICATED, hint="log in again"
    )
