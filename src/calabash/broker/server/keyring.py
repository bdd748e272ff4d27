"""What a server keeps of its tokens: the keys that sign them, and which were given out and revoked.

Two files beside each other, readable by their owner only, replaced as a whole and written through, changed under one lock:
who is killed in between leaves the one before. The broker reads them anew whenever they have changed.
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
FORGOTTEN_S = 30 * 86_400  # so long after its end a token is still listed


class KeptKey(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A key as it is kept: ``secret`` is empty when it signs no longer, ``ends`` is when it counts no longer."""

    id: str
    public: str
    secret: str = ""
    ends: float | None = None

    def __repr__(self) -> str:
        return f"KeptKey(id={self.id!r})"


class Keyring(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The server's name for itself, and its keys; the first signs."""

    server: str
    keys: list[KeptKey]

    def known(self) -> dict[str, KnownKey]:
        return {key.id: KnownKey(public=bytes.fromhex(key.public), ends=key.ends) for key in self.keys}


class IssuedToken(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A token that was given out: what it says, and when it was revoked."""

    claims: TokenClaims
    revoked: float | None = None


class IssuedTokens(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """All that were given out and have not ended long ago."""

    tokens: list[IssuedToken] = []

    def revoked(self) -> frozenset[str]:
        return frozenset(token.claims.id for token in self.tokens if token.revoked is not None)


class TokenOffice:
    """Makes, lists and revokes the tokens of the server whose files are in ``directory``, which must exist."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keyring(self) -> Keyring:
        """The server's keys, made when there are none yet."""
        path = self._directory / KEYS_FILE
        if not path.exists():
            with self._changing():
                if not path.exists():
                    self._write(KEYS_FILE, Keyring(server=secrets.token_hex(8), keys=[_new_key()]))
        return read_struct(path, Keyring)

    def issued(self) -> IssuedTokens:
        path = self._directory / TOKENS_FILE
        return read_struct(path, IssuedTokens) if path.exists() else IssuedTokens()

    def create(self, name: str, *, gpus: int, memory_mib: int, cores: int, valid_s: float, now: float) -> str:
        """A new token's text. Raises CalabashError for what no token can say."""
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
                f"no token can say that: {error}", hint="see `calabash server token create -h`"
            ) from None
        with self._changing():
            kept = [t for t in self.issued().tokens if t.claims.expires + FORGOTTEN_S > now]
            self._write(TOKENS_FILE, IssuedTokens(tokens=[*kept, IssuedToken(claims=claims)]))
        return issue(claims, bytes.fromhex(key.secret))

    def revoke(self, named: str, now: float) -> list[TokenClaims]:
        """From now on the tokens of that name, or the one of that id, give no right. Raises NOT_FOUND when there is none."""
        with self._changing():
            tokens = self.issued().tokens
            meant = {t.claims.id for t in tokens if named in (t.claims.name, t.claims.id) and t.revoked is None}
            if not meant:
                raise CalabashError(
                    f"there is no token {named!r} to revoke",
                    reason=Reason.NOT_FOUND,
                    hint="see `calabash server token list` for those there are",
                )
            changed = [IssuedToken(claims=t.claims, revoked=now) if t.claims.id in meant else t for t in tokens]
            self._write(TOKENS_FILE, IssuedTokens(tokens=changed))
        return [t.claims for t in changed if t.claims.id in meant]

    def rotate(self, *, keep_s: float, now: float) -> str:
        """Sign with a new key from now on; signatures of those before count ``keep_s`` longer. The new key's id."""
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
