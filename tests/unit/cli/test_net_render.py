"""Tests of ``calabash net render``: custom resources of files, and each unsupported feature on standard error."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from calabash.cli.commands import cli
from calabash.model.errors import CalabashError

NETWORKS = """\
kind: vpc
name: red
spec: {cidrs: [10.0.0.0/16]}
---
kind: subnet
name: red/a
spec: {cidrs: [10.0.1.0/24], dhcp: true}
---
kind: port
name: red/a/web1
---
kind: dns
name: red/db
spec: {host: db.internal, addresses: [10.0.1.11]}
---
kind: uplink
name: ext
spec: {cidr: 198.51.100.0/24, gateway: 198.51.100.1}
"""


def rendered(tmp_path: Path, text: str, *words: str) -> Result:
    file = tmp_path / "networks.yaml"
    file.write_text(text)
    return CliRunner().invoke(cli, ["net", "render", "--backend", "kube-ovn", "-f", str(file), *words])


def test_a_file_becomes_custom_resources_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    done = rendered(tmp_path, NETWORKS, "--interface", "ext=enp1s0")
    assert done.exit_code == 0, done.output
    found = {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(done.stdout)}
    assert found["Subnet", "cb1-a"]["spec"]["gateway"] == "10.0.1.1"
    assert found["ProviderNetwork", "ext"]["spec"] == {"defaultInterface": "enp1s0"}
    assert '"10.0.1.2"' in found["ConfigMap", "calabash-ports"]["data"]["a.web1"]
    assert done.stderr.splitlines() == ["dns red/db is omitted: VpcDns answers names of the cluster only"]


def test_the_strict_fail_when_anything_is_left_out(tmp_path: Path) -> None:
    assert rendered(tmp_path, NETWORKS, "--strict").exit_code == 1
    assert rendered(tmp_path, NETWORKS.partition("---\nkind: dns")[0], "--strict").exit_code == 0


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("kind: vpc\nname: red\nspec: {cidr: [10.0.0.0/16]}\n", (), "document 1"),
        ("kind: subnet\nname: red/a\nspec: {cidrs: [10.0.1.0/24]}\n", (), "document 1"),
        (NETWORKS, ("--interface", "ext"), "is not PHYSICAL=CARD"),
    ],
)
def test_a_bad_file_or_card_is_one_clear_line(tmp_path: Path, text: str, words: tuple[str, ...], said: str) -> None:
    done = rendered(tmp_path, text, *words)
    assert isinstance(done.exception, CalabashError)
    assert said in done.exception.message
    assert done.stdout == ""
