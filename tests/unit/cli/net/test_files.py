"""Files of network objects on the command line: each object is sent with its place in its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from calabash.api.networks import PLACE_CHARACTERS_MAX, NetworkFile
from calabash.cli.commands import cli
from calabash.cli.net import files


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
