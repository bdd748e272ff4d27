"""Manifests of network objects: strict parsing, atomic application, and pruning of objects that were created by files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.platform.networks.people import ANN, EVE, PEOPLE, ROOT, pool_networks, put, red, refused

from calabash.adapters.store import Store, open_store
from calabash.api import networks as shapes
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import NetworkKind
from calabash.model.tenancy import Principal, Tenant
from calabash.net.objects.manifest_parser import BYTES_MAX, DOCUMENTS_MAX, read_manifests
from calabash.net.store.apply_plan import difference_lines
from calabash.platform.networks.files import apply_file
from calabash.platform.networks.store import NetworkStore

TEXT = """\
# a network of one's own
kind: port
name: red/a/web1
spec: {addresses: [10.0.1.11], mac: 52:54:00:12:34:56, security_groups: [red/web]}
---
kind: sg
name: red/web
spec:
  rules:
  - {direction: ingress, protocol: tcp, ports: [443, 443], peer: 0.0.0.0/0}
  - {direction: ingress, peer_group: red/db}
---
kind: sg
name: red/db
spec: {rules: [{direction: ingress, peer_group: red/web}]}
---
apiVersion: calabash.dev/v1
kind: subnet
name: red/a
spec: {cidrs: [10.0.1.0/24], dhcp: true}
---
kind: vpc
name: red
spec: {cidrs: [10.0.0.0/16]}
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path}/pool.db")
    yield opened
    opened.close()


@pytest.fixture
def networks(store: Store) -> NetworkStore:
    return pool_networks(store)


def applied(
    networks: NetworkStore, text: str, who: Principal = ANN, *, prune: bool = False, dry_run: bool = False
) -> list[str]:
    documents = [
        shapes.NetworkDocument(kind=m.kind, name=m.name, spec=dict(m.spec)) for m in read_manifests(text, "net.yaml")
    ]
    changes, _ = apply_file(networks, who, shapes.NetworkFile(documents=documents, prune=prune, dry_run=dry_run))
    return [f"{change.word} {change.kind} {change.name}" for change in changes]


def test_objects_may_be_in_any_order_and_applying_twice_changes_nothing(networks: NetworkStore) -> None:
    assert applied(networks, TEXT) == [
        "created vpc red",
        "created subnet red/a",
        "created sg red/db",
        "created sg red/default",
        "created sg red/web",
        "created port red/a/web1",
    ]
    kept = networks.state().kept
    assert len(kept["sg", "red/web"].spec["rules"]) == 2
    assert kept["port", "red/a/web1"].spec["mac"] == "52:54:00:12:34:56", "no number of base sixty"
    assert {row.generation for row in kept.values()} == {1}
    assert kept["vpc", "red"].tenant == "vision"
    assert networks.state().revision == 1, "one step"
    again = applied(networks, TEXT)
    assert {line.split()[0] for line in again} == {"unchanged"}
    assert networks.state().kept == kept
    assert networks.state().revision == 1


def test_dry_run_reports_the_changes_without_making_them(networks: NetworkStore, store: Store) -> None:
    said = applied(networks, TEXT, dry_run=True)
    assert not networks.state().kept
    assert not pool_networks(store).state().kept
    assert applied(networks, TEXT) == said


def test_file_with_one_invalid_object_changes_nothing_and_names_the_document(networks: NetworkStore) -> None:
    overlap = TEXT + "---\nkind: subnet\nname: red/b\nspec: {cidrs: [10.0.1.128/25]}\n"
    assert refused(Reason.CONFLICT, applied, networks, overlap).message.startswith("document 6: subnet red/b: ")
    unknown = TEXT + "---\nkind: port\nname: red/z/web1\n"
    assert refused(Reason.NOT_FOUND, applied, networks, unknown).message.startswith("document 6: ")
    twice = TEXT + "---\nkind: vpc\nname: red\nspec: {cidrs: [10.0.0.0/16]}\n"
    assert (
        "document 6: vpc red is already defined in document 5"
        in refused(Reason.BAD_REQUEST, applied, networks, twice).message
    )
    field = TEXT + "---\nkind: vpc\nname: blue\nspec: {cidr: 10.0.0.0/16}\n"
    assert "document 6: vpc blue: unknown field 'cidr'" in refused(Reason.BAD_REQUEST, applied, networks, field).message
    assert not networks.state().kept
    assert networks.state().revision == 0


def test_error_names_the_place_that_the_client_gave_for_the_document(networks: NetworkStore) -> None:
    order = shapes.NetworkFile(
        documents=[
            shapes.NetworkDocument(kind="vpc", name="red", spec={"cidrs": ["10.0.0.0/16"]}, place="a.yaml: document 7"),
            shapes.NetworkDocument(kind="vpc", name="red", spec={"cidrs": ["10.0.0.0/16"]}, place="b.yaml: document 1"),
        ]
    )
    assert refused(Reason.BAD_REQUEST, apply_file, networks, ANN, order).message == (
        "b.yaml: document 1: vpc red is already defined in a.yaml: document 7"
    )


def test_file_is_subject_to_the_limits_of_the_tenant(networks: NetworkStore, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = ((NetworkKind.PORT, 1),)
    monkeypatch.setitem(cast("dict[str, Tenant]", PEOPLE.tenants), "vision", Tenant(name="vision", networks=bounds))
    two = TEXT + "---\nkind: port\nname: red/a/web2\n"
    told = refused(Reason.USER_LIMIT, applied, networks, two)
    assert told.message == "tenant vision has 0 of kind port and requests 2 more, at most 1"
    applied(networks, TEXT)
    other = TEXT.replace("red/a/web1", "red/a/web9")
    assert "removed port red/a/web1" in applied(networks, other, prune=True), "one goes and one comes"


def test_pruning_removes_only_objects_created_by_files_in_the_named_vpcs(networks: NetworkStore) -> None:
    applied(networks, TEXT)
    put(networks, ANN, "port", "red/a/by-hand")
    blue = "kind: vpc\nname: blue\nspec: {cidrs: [10.0.0.0/16]}\n---\nkind: sg\nname: blue/web\n"
    applied(networks, blue)
    only_subnet = "kind: subnet\nname: red/a\nspec: {cidrs: [10.0.1.0/24], dhcp: true}\n"
    assert applied(networks, only_subnet, prune=True) == ["unchanged subnet red/a"], "the VPC is no document of it"
    less = f"{only_subnet}---\nkind: vpc\nname: red\nspec: {{cidrs: [10.0.0.0/16]}}\n"
    assert applied(networks, less, prune=True) == [
        "unchanged vpc red",
        "unchanged subnet red/a",
        "removed port red/a/web1",
        "removed sg red/db",
        "removed sg red/web",
    ]
    assert ("port", "red/a/by-hand") in networks.state().kept
    assert ("sg", "blue/web") in networks.state().kept
    assert ("sg", "red/default") in networks.state().kept
    in_use = "kind: vpc\nname: red\nspec: {cidrs: [10.0.0.0/16]}\n"
    told = refused(Reason.CONFLICT, applied, networks, in_use, prune=True)
    assert "cannot remove subnet red/a: " in told.message
    assert "red/a/by-hand" in told.message


def test_applying_to_objects_of_another_tenant_is_refused(networks: NetworkStore) -> None:
    red(networks)
    before = networks.state()
    for kind in ("port", "subnet"):
        name = {"port": "red/a/mine", "subnet": "red/b"}[kind]
        text = f"kind: {kind}\nname: {name}\n" + ("spec: {cidrs: [10.0.2.0/24]}\n" if kind == "subnet" else "")
        mine = refused(Reason.NOT_FOUND, applied, networks, text, EVE)
        none = refused(Reason.NOT_FOUND, applied, networks, text.replace("red/", "nil/"), EVE)
        assert str(mine).replace("red", "nil") == str(none)
    refused(Reason.CONFLICT, applied, networks, "kind: vpc\nname: red\nspec: {cidrs: [10.0.0.0/16]}\n", EVE, prune=True)
    refused(
        Reason.NOT_PERMITTED,
        applied,
        networks,
        TEXT.replace("name: red\n", "name: red\n")
        .replace("red", "mine")
        .replace("{cidrs: [10.0.0.0/16]}", "{cidrs: [10.0.0.0/16], tenant: vision}"),
        EVE,
    )
    assert networks.state() is before
    applied(networks, TEXT.replace("red", "theirs").replace("/16]}", "/16], tenant: speech}"), ROOT)
    assert networks.state().kept["port", "theirs/a/web1"].tenant == "speech"


def test_output_of_show_and_list_can_be_applied(networks: NetworkStore) -> None:
    text = """\
apiVersion: calabash.dev/v1
kind: NetworkObjectList
items:
- kind: vpc
  name: red
  tenant: vision
  generation: 3
  spec: {cidrs: [10.0.0.0/16], tenant: vision, mtu_bytes: 1400, number: 7}
  status: {observed_generation: 3, conditions: [], host: ''}
"""
    assert applied(networks, text)[0] == "created vpc red"
    assert networks.state().kept["vpc", "red"].spec["number"] == 7


BAD = (
    ("a: &x 1\n", "anchors are not supported"),
    ("a: *x\n", "anchors are not supported"),
    ("kind: !!python/object:os.system vpc\n", "tags are not supported"),
    ("kind: vpc\nkind: vpc\n", "duplicate key 'kind'"),
    ("1: vpc\n", "a key is not text"),
    ("kind: [vpc\n", "net.yaml, line 2: "),
    ("- kind: vpc\n", "net.yaml: document 1 is not a map"),
    ("kind: vpc\n", "net.yaml: document 1: name is missing"),
    ("kind: vpc\nname: 5\n", "net.yaml: document 1: name is not text"),
    ("kind: vpc\nname: red\nspecs: {}\n", "net.yaml: document 1: unknown field 'specs'"),
    ("kind: vpc\nname: red\nspec: [1]\n", "net.yaml: document 1: spec is not a map"),
    ("kind: NetworkObjectList\nitems: 3\n", "net.yaml: document 1: items is not a list"),
    ("a: " * 30 + "1\n", "net.yaml, line 1: "),
    ("a: " + "[" * 50 + "]" * 50 + "\n", "deeper than 12"),
    ("\0", "net.yaml: "),
    ("#" * (BYTES_MAX + 1), "net.yaml is larger than 1048576 bytes"),
    ("---\nkind: vpc\nname: red\n" * (DOCUMENTS_MAX + 1), "more than 2000 objects"),
)


@pytest.mark.parametrize(("text", "message"), BAD, ids=range(len(BAD)))
def test_invalid_file_is_refused_with_its_location(text: str, message: str) -> None:
    with pytest.raises(CalabashError) as told:
        read_manifests(text, "net.yaml")
    assert message in told.value.message
    assert told.value.hint
    assert told.value.message.isprintable()


@given(
    st.text(alphabet=st.sampled_from("kindamespc: -[]{}&*!|>'\"\n\t#0129.~yon/"), max_size=200) | st.text(max_size=60)
)
def test_any_text_is_parsed_or_refused_with_a_one_line_message(text: str) -> None:
    told: CalabashError | None = None
    try:
        found = read_manifests(text)
    except CalabashError as error:
        told, found = error, []
    assert all(isinstance(one.kind, str) and isinstance(one.name, str) for one in found)
    assert told is None or ("\n" not in told.message and told.hint)


def test_scalars_are_parsed_as_in_json() -> None:
    (one,) = read_manifests(
        "kind: vpc\nname: red\nspec: {a: on, b: 22:22, c: 010, d: 0x10, e: 1.5, f: -3, g: ~, h: '1'}\n"
    )
    assert one.spec == {"a": "on", "b": "22:22", "c": "010", "d": "0x10", "e": 1.5, "f": -3, "g": None, "h": "1"}


def test_difference_lines_name_the_fields() -> None:
    before = {"cidrs": ["10.0.1.0/24"], "dhcp": False, "rules": [{"direction": "ingress", "peer": None}]}
    after = {"cidrs": ["10.0.1.0/24"], "dhcp": True, "rules": []}
    assert difference_lines(before, after) == [
        "- dhcp: false",
        "- rules: direction: ingress",
        "+ dhcp: true",
        "+ rules: []",
    ]
    assert difference_lines(None, {"dhcp": True}) == ["+ dhcp: true"]


def test_unknown_kind_is_refused_with_its_document(networks: NetworkStore) -> None:
    told = refused(Reason.BAD_REQUEST, applied, networks, "kind: pod\nname: red\n")
    assert told.message == "document 1: kind 'pod' is unknown"
    assert str(NetworkKind.SUBNET) in told.hint
