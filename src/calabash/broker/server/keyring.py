"""Signing keys of a server, and the record of its issued and revoked tokens.

The state is in two files, which only their owner can read. Both are changed under one lock and replaced atomically, so
a process that is killed during a change leaves the previous state. The broker reads the files again whenever they have
changed.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from calabash.broker.crypto import new_signing_key, public_of
from calabash.broker.json_files import read_struct, write_struct
from calabash.broker.tokens import KnownKey, TokenClaims, issue
from calabash.model.errors import CalabashError, Reason

KEYS_FILE, TOKENS_FILE, LOCK_FILE = "keys.json", "tokens.json", "tokens.lock"
LISTED_AFTER_END_S = 30 * 86_400  # an expired token is still listed for so long


class KeptKey(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Stored signing key.

    Args:
        id: ID of the key, which tokens name.
        public: public key in hexadecimal digits.
        secret: private key in hexadecimal digits; "" if the key signs no new tokens.
        ends: time after which its signatures are not accepted, in seconds since the epoch; None for no end.
    """

    id: str
    public: str
    secret: str = ""
    ends: float | None = None

    def __repr__(self) -> str:
        return f"KeptKey(id={self.id!r})"


class Keyring(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Random ID of the server, and its signing keys; new tokens are signed with the first key."""

    server: str
    keys: list[KeptKey]

    def known(self) -> dict[str, KnownKey]:
        """Return the public keys by their ID."""
        return {key.id: KnownKey(public=bytes.fromhex(key.public), ends=key.ends) for key in self.keys}


class IssuedToken(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Issued token: its claims, and the time of its revocation (seconds since the epoch; None if not revoked)."""

    claims: TokenClaims
    revoked: float | None = None


class IssuedTokens(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Issued tokens, without those that expired more than LISTED_AFTER_END_S ago."""

    tokens: list[IssuedToken] = []

    def revoked(self) -> frozenset[str]:
        """Return the IDs of revoked tokens."""
        return frozenset(token.claims.id for token in self.tokens if token.revoked is not None)


class TokenRegistry:
    """Creates, lists and revokes the tokens of the server whose files are in ``directory``, which must exist."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keyring(self) -> Keyring:
        """Return the server's ID and keys; creates them if there are none."""
        path = self._directory / KEYS_FILE
        if not path.exists():
            with self._changing():
                if not path.exists():
                    self._write(KEYS_FILE, Keyring(server=secrets.token_hex(8), keys=[_new_key()]))
        return read_struct(path, Keyring)

    def issued(self) -> IssuedTokens:
        """Return the issued tokens."""
        path = self._directory / TOKENS_FILE
        return read_struct(path, IssuedTokens) if path.exists() else IssuedTokens()

    def create(self, name: str, *, gpus: int, memory_mib: int, cores: int, valid_s: float, now: float) -> str:
        """Issue a token and return its text.

        Args:
            name: account of the token.
            gpus: devices that can be held at a time.
            memory_mib: memory that can be held at a time; 0 is unlimited.
            cores: largest share of one device in percent.
            valid_s: seconds until the token expires.
            now: seconds since the epoch.

        Raises:
            CalabashError: BAD_REQUEST if a value is out of bounds.
        """
        keyring = self.keyring()
        key = keyring.keys[0]
        wanted = {
            "server": keyring.server,
            "key": key.id,
            "id": secrets.token_hex(8),
            "name": name,
            "gpus": gpus,
            "memory_mib": memory_mib,
            "cores": cores,
            "issued": int(now),
            "expires": int(now + valid_s),
        }
        try:
            claims = msgspec.convert(wanted, TokenClaims)
        except msgspec.ValidationError as error:
            raise CalabashError(
                f"invalid value for a token: {error}", hint="see `calabash remote server token create -h`"
            ) from None
        with self._changing():
            kept = [t for t in self.issued().tokens if t.claims.expires + LISTED_AFTER_END_S > now]
            self._write(TOKENS_FILE, IssuedTokens(tokens=[*kept, IssuedToken(claims=claims)]))
        return issue(claims, bytes.fromhex(key.secret))

    def revoke(self, named: str, now: float) -> list[TokenClaims]:
        """Revoke all tokens of a name, or the token with an ID, and return their claims.

        Raises:
            CalabashError: NOT_FOUND if there is no such token, or it was revoked before.
        """
        with self._changing():
            tokens = self.issued().tokens
            meant = {t.claims.id for t in tokens if named in (t.claims.name, t.claims.id) and t.revoked is None}
            if not meant:
                raise CalabashError(
                    f"no token {named!r} to revoke",
                    reason=Reason.NOT_FOUND,
                    hint="list the tokens with `calabash remote server token list`",
                )
            changed = [IssuedToken(claims=t.claims, revoked=now) if t.claims.id in meant else t for t in tokens]
            self._write(TOKENS_FILE, IssuedTokens(tokens=changed))
        return [t.claims for t in changed if t.claims.id in meant]

    def rotate(self, *, keep_s: float, now: float) -> str:
        """Create a new signing key and return its ID.

        Args:
            keep_s: seconds for which signatures of the earlier keys are still accepted; 0 deletes these keys.
            now: seconds since the epoch.
        """
        self.keyring()
        with self._changing():
            keyring = read_struct(self._directory / KEYS_FILE, Keyring)
            ends = now + keep_s
            before = [
                KeptKey(id=k.id, public=k.public, ends=ends if k.ends is None else min(k.ends, ends))
                for k in keyring.keys
                if (k.ends is None or k.ends > now) and keep_s > 0
            ]
            fresh = _new_key()
            self._write(KEYS_FILE, Keyring(server=keyring.server, keys=[fresh, *before]))
        return fresh.id

    @contextmanager
    def _changing(self) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._directory / LOCK_FILE, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, name: str, content: msgspec.Struct) -> None:
        write_struct(self._directory / name, content)


def _new_key() -> KeptKey:
    secret = new_signing_key()
    return KeptKey(id=secrets.token_hex(8), public=public_of(secret).hex(), secret=secret.hex())
