"""Files of network objects on the command line: each object is sent with its place in its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from calabash.api.networks import PLACE_CHARACTERS_MAX, NetworkFile
from calabash.api.requests import decode
from calabash.cli.commands import cli
from calabash.cli.net import files
from calabash.model.errors import CalabashError


class _Server:
    """Client of a server that accepts every file and keeps what it was sent."""

    def __init__(self) -> None:
        self.file = NetworkFile(documents=[])

    def send(self, _: object, *, body: dict[str, Any]) -> dict[str, Any]:
        self.file = msgspec.convert(body, NetworkFile)
        return {"changes": [], "revision": 1}


@pytest.mark.parametrize("folder", ["short", "a\tb", "long" * 60], ids=["short", "tab", "long"])
def test_each_object_is_sent_with_its_file_and_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    server = _Server()
    monkeypatch.setattr(files, "client", lambda: server)
    one, two = tmp_path / folder / "one.yaml", tmp_path / folder / "two.yaml"
    one.parent.mkdir()
    one.write_text("kind: vpc\nname: red\n")
    two.write_text("kind: vpc\nname: green\n---\nkind: vpc\nname: blue\n")
    result = CliRunner().invoke(cli, ["net", "apply", "-f", str(one), "-f", str(two)], catch_exceptions=False)
    assert result.exit_code == 0
    assert [(d.name, d.place.rpartition("/")[2]) for d in server.file.documents] == [
        ("red", "one.yaml: document 1"),
        ("green", "two.yaml: document 1"),
        ("blue", "two.yaml: document 2"),
    ]
    assert all(len(d.place) <= PLACE_CHARACTERS_MAX for d in server.file.documents)


class _OlderDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    kind: str
    name: str
    spec: dict[str, Any] = {}


class _OlderFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    documents: list[_OlderDocument]
    prune: bool = False
    dry_run: bool = False


class _OlderServer:
    """Client of a server whose documents have no place; it refuses VPCs without addresses."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.asked = 0

    def send(self, _: object, *, body: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        for number, document in enumerate(decode(msgspec.json.encode(body), _OlderFile).documents, start=1):
            if "cidrs" not in document.spec:
                raise CalabashError(f"document {number}: vpc {document.name}: cidrs is missing")
            self.taken.append(document.name)
        return {"changes": [], "revision": 1}


def _apply(monkeypatch: pytest.MonkeyPatch, server: object, file: Path) -> Result:
    monkeypatch.setattr(files, "client", lambda: server)
    return CliRunner().invoke(cli, ["net", "apply", "-f", str(file)])


def test_file_is_applied_by_a_server_whose_documents_have_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, file = _OlderServer(), tmp_path / "net.yaml"
    file.write_text("kind: vpc\nname: red\nspec: {cidrs: [10.0.0.0/16]}\n")
    assert _apply(monkeypatch, server, file).exit_code == 0
    assert server.taken == ["red"]


def test_other_refusal_is_not_followed_by_a_second_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(_OlderServer):
        def send(self, _: object, *, body: dict[str, Any]) -> dict[str, Any]:
            self.asked += 1
            raise CalabashError("net.yaml: document 1: vpc red: unknown field 'cidr'")

    server, file = Refusing(), tmp_path / "net.yaml"
    file.write_text("kind: vpc\nname: red\n")
    assert isinstance(_apply(monkeypatch, server, file).exception, CalabashError)
    assert server.asked == 1
