"""Tests of the entries that administrators add to the table."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from calabash.kubernetes.gangs.membership import entry_of, member_of
from calabash.kubernetes.gangs.owner import read_owners
from calabash.kubernetes.gangs.resolve import gangs_of
from calabash.kubernetes.gangs.table import OWNERS, table_with
from calabash.model.errors import CalabashError, Reason

FLOCK: dict[str, Any] = {
    "system": "Flock",
    "group": "flock.example.com",
    "kind": "Flock",
    "plural": "flocks",
    "versions": ["v1"],
    "roles": [{"at": "spec.members", "each": "list", "nameAt": "as", "replicas": ["number"], "template": ["pod"]}],
    "minimum": ["spec.quorum"],
    "roleLabels": ["flock.example.com/as"],
}


def test_added_kind_is_understood_without_code() -> None:
    table = table_with(read_owners([FLOCK]))
    spec = {"quorum": 3, "members": [{"as": "guide"}, {"as": "bird", "number": 4}]}
    manifest = {"apiVersion": "flock.example.com/v1", "kind": "Flock", "metadata": {"name": "f"}, "spec": spec}
    owner = entry_of(table, manifest)
    assert owner is not None
    (gang,) = gangs_of(owner, manifest)
    assert ({role.name: role.count for role in gang.roles}, gang.minimum) == ({"guide": 1, "bird": 4}, 3)
    assert member_of(owner, manifest, {"metadata": {"labels": {"flock.example.com/as": "bird"}}}).role == "bird"


def test_added_entry_replaces_the_known_one_of_its_kind() -> None:
    changed = {**msgspec.to_builtins(OWNERS[0]), "makes": "always"}
    assert table_with(read_owners([changed]))["batch/Job"].makes == "always"


def test_every_known_entry_is_a_valid_added_entry() -> None:
    assert read_owners(list(msgspec.to_builtins(OWNERS))) == OWNERS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, "gangs.owners[0]: Object contains unknown field `colour`"),
        ({"kind": "flock"}, "gangs.owners[0]: Expected `str` matching regex"),
        ({"versions": []}, "gangs.owners[0]: Expected `array` of length >= 1 - at `$.versions`"),
        ({"copies": "spec..n"}, "gangs.owners[0]: Expected `str` matching regex"),
        ({"copies": "spec.x\n"}, "gangs.owners[0]: Expected `str` matching regex"),
        ({"copies": ".".join("a" * 13)}, "gangs.owners[0]: Expected `str` matching regex"),
        ({"roles": []}, "gangs.owners[0]: Expected `array` of length >= 1 - at `$.roles`"),
        ({"roles": [{"each": "list"}]}, "gangs.owners[0].roles[0]: each is list without at"),
        ({"roles": [{"at": "spec"}]}, "gangs.owners[0].roles[0]: a role without name"),
        ({"roles": [{"name": "a"}, {"name": "a"}]}, "gangs.owners[0]: two roles have the same name"),
        ({"roles": [{"name": "a", "less": 1}]}, "gangs.owners[0].roles[0]: less is 1 without replicas"),
        ({"roles": [{"name": "a", "gpus": "n"}]}, "gangs.owners[0].roles[0]: gpus without gpuName"),
        ({"gangPerRole": True, "order": {}}, "gangs.owners[0]: order has no effect with gangPerRole"),
        ({"order": {"values": ["x"]}}, "gangs.owners[0].order: values without path"),
    ],
)
def test_invalid_entry_is_refused_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CalabashError) as caught:
        read_owners([{**FLOCK, **change}])
    assert caught.value.message.startswith(message)
    assert (caught.value.reason, caught.value.hint) == (Reason.BAD_FILE, "see docs/concepts/gangs-of-owners.md")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "gangs.owners is not a list but dict"),
        (None, "gangs.owners is not a list but NoneType"),
        ([FLOCK, FLOCK], "gangs.owners[1]: flock.example.com/Flock stands in the list twice"),
        ([FLOCK] * 65, "gangs.owners has 65 entries, at most 64"),
        (["x"], "gangs.owners[0]: Expected `object`, got `str`"),
    ],
)
def test_list_of_another_form_is_refused(tree: Any, message: str) -> None:
    with pytest.raises(CalabashError) as caught:
        read_owners(tree)
    assert caught.value.message == message
