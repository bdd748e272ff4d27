"""Tokens, their signing keys and token files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.broker.crypto import new_signing_key, public_of
from calabash.broker.server.keyring import TokenRegistry
from calabash.broker.token_file import GivenToken, parse_token_file, read_token_file
from calabash.broker.tokens import KnownKey, TokenClaims, end_reason, issue, read_token
from calabash.model.errors import CalabashError, Reason

SERVER, KEY, SECRET = "5" * 16, "7" * 16, bytes(range(32))
KEYS = {KEY: KnownKey(public=public_of(SECRET))}
NOW = 1_000_000.0

claims_of_any_size = st.builds(
    TokenClaims,
    server=st.just(SERVER),
    key=st.just(KEY),
    id=st.text("0123456789abcdef", min_size=16, max_size=16),
    name=st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True),
    gpus=st.integers(0, 4096),
    memory_mib=st.integers(0, 1 << 40),
    cores=st.integers(1, 100),
    issued=st.integers(0, 1 << 40),
    expires=st.integers(0, 1 << 40),
)


def claims(**changes: object) -> TokenClaims:
    given_so: dict[str, object] = {
        "server": SERVER,
        "key": KEY,
        "id": "a" * 16,
        "name": "vision",
        "gpus": 2,
        "memory_mib": 40960,
        "cores": 100,
        "issued": int(NOW),
        "expires": int(NOW) + 100,
    }
    return TokenClaims(**{**given_so, **changes})  # type: ignore[arg-type]


def refused(text: str, *, now: float = NOW, keys: dict[str, KnownKey] | None = None) -> str:
    with pytest.raises(CalabashError) as caught:
        read_token(text, server=SERVER, keys=KEYS if keys is None else keys, now=now)
    assert caught.value.reason is Reason.NOT_PERMITTED
    assert caught.value.hint
    return caught.value.message


@given(claims_of_any_size)
def test_token_round_trips_its_claims(said: TokenClaims) -> None:
    assert read_token(issue(said, SECRET), server=SERVER, keys=KEYS, now=NOW) == said


@given(claims_of_any_size, st.data())
def test_token_with_one_changed_character_is_refused(said: TokenClaims, data: st.DataObject) -> None:
    text = issue(said, SECRET)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters().filter(lambda c: c != text[at]))
    refused(text[:at] + other + text[at + 1 :])


@given(st.text(max_size=3000))
def test_arbitrary_text_is_refused_as_token(text: str) -> None:
    refused(text)
    refused(f"calabash1.{text}.{text}")


def test_token_signed_with_another_key_is_refused() -> None:
    assert "signature is invalid" in refused(issue(claims(), new_signing_key()))


def test_token_of_another_server_is_refused() -> None:
    assert "for another server" in refused(issue(claims(server="6" * 16), SECRET))


def test_token_is_valid_until_its_signing_key_ends() -> None:
    text = issue(claims(), SECRET)
    keys = {KEY: KnownKey(public=public_of(SECRET), ends=NOW + 5)}
    assert read_token(text, server=SERVER, keys=keys, now=NOW + 4.9).name == "vision"
    assert "is no longer valid" in refused(text, keys=keys, now=NOW + 5)
    assert "is no longer valid" in refused(text, keys={})


def test_token_ends_when_it_expires_or_is_revoked() -> None:
    assert end_reason(claims(), revoked=False, now=NOW + 99) == ""
    assert "has expired" in end_reason(claims(), revoked=False, now=NOW + 100)
    assert "was revoked" in end_reason(claims(), revoked=True, now=NOW)


def test_registry_lists_and_revokes_issued_tokens(tmp_path: Path) -> None:
    registry = TokenRegistry(tmp_path)
    text = registry.create("vision", gpus=2, memory_mib=40960, cores=50, valid_s=60, now=NOW)
    again = registry.create("vision", gpus=1, memory_mib=0, cores=100, valid_s=60, now=NOW)
    ring = registry.keyring()
    first, second = (read_token(t, server=ring.server, keys=ring.known(), now=NOW) for t in (text, again))
    assert (first.gpus, first.memory_mib, first.cores, first.expires) == (2, 40960, 50, int(NOW) + 60)
    assert registry.issued().revoked() == frozenset()
    assert registry.revoke(first.id, NOW) == [first]
    assert registry.revoke("vision", NOW) == [second]
    assert registry.issued().revoked() == {first.id, second.id}
    with pytest.raises(CalabashError, match="no token 'vision' to revoke"):
        registry.revoke("vision", NOW)


def test_old_tokens_stay_valid_for_the_given_time_after_key_rotation(tmp_path: Path) -> None:
    registry = TokenRegistry(tmp_path)
    old = registry.create("a", gpus=1, memory_mib=0, cores=100, valid_s=1000, now=NOW)
    registry.rotate(keep_s=10, now=NOW)
    new = registry.create("b", gpus=1, memory_mib=0, cores=100, valid_s=1000, now=NOW)
    ring = registry.keyring()
    assert read_token(old, server=ring.server, keys=ring.known(), now=NOW + 9).name == "a"
    assert read_token(new, server=ring.server, keys=ring.known(), now=NOW + 11).name == "b"
    with pytest.raises(CalabashError, match="is no longer valid"):
        read_token(old, server=ring.server, keys=ring.known(), now=NOW + 11)
    assert [bool(key.secret) for key in ring.keys] == [True, False]


def test_repr_of_keys_contains_no_secret(tmp_path: Path) -> None:
    ring = TokenRegistry(tmp_path).keyring()
    assert ring.keys[0].secret not in repr(ring)
    assert "tok" * 10 not in repr(GivenToken(token="tok" * 10, certificate="sha256:" + "0" * 64))


def test_registry_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    registry = TokenRegistry(tmp_path)
    registry.create("a", gpus=1, memory_mib=0, cores=100, valid_s=1000, now=NOW)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"keys.json": 0o600, "tokens.json": 0o600, "tokens.lock": 0o600}


def test_damaged_key_file_is_reported_without_its_content(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text('{"server": "secret-thing"}')
    with pytest.raises(CalabashError) as caught:
        TokenRegistry(tmp_path).keyring()
    assert caught.value.reason is Reason.BAD_FILE
    assert "secret-thing" not in str(caught.value)


# -- the file ------------------------------------------------------------------------------------------------------

FILE = GivenToken(token="calabash1.abc.def-_", certificate="sha256:" + "0a" * 32, servers=("lab01:7433", "[::1]:7433"))


def test_token_file_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "vision.token"
    path.write_text(FILE.text(name="vision"))
    path.chmod(0o600)
    assert read_token_file(path) == FILE


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_token_file_readable_by_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "vision.token"
    path.write_text(FILE.text(name="vision"))
    path.chmod(mode)
    with pytest.raises(CalabashError, match="read by others") as caught:
        read_token_file(path)
    assert "chmod 600" in caught.value.hint


def test_token_file_must_be_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(CalabashError, match="is not a file"):
        read_token_file(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no token"),
        ("token = calabash1.aaaaaaaaaaaaaa.bb\n", "has no certificate"),
        ("token = x\n", "line 1 is not understood"),
        ("# hello\nsecret-thing\n", "line 2 is not understood"),
        (FILE.text(name="a") + "token = calabash1.aaaaaaaaaaaaaa.bb\n", "line 6 is not understood"),
    ],
)
def test_invalid_token_file_is_reported_by_line_without_its_content(text: str, why: str) -> None:
    with pytest.raises(CalabashError, match=why) as caught:
        parse_token_file(text, what="x.token")
    assert "secret-thing" not in str(caught.value)


@given(st.text(max_size=300))
def test_text_without_fingerprint_is_refused_as_token_file(text: str) -> None:
    with pytest.raises(CalabashError) as caught:
        parse_token_file(text, what="x")
    assert caught.value.reason is Reason.BAD_FILE
