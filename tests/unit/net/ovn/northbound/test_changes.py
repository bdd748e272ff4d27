"""Changes between desired and observed rows: they transform one into the other, in an order that a database accepts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.net.network_builders import build_networks, port, subnet, vpc
from tests.unit.net.ovn.northbound.applied_changes import apply_changes

from calabash.model.network import NetworkObject
from calabash.net.ovn.northbound.changes import diff
from calabash.net.ovn.northbound.rows import Delete, Insert, Ref, Rows, Update
from calabash.net.ovn.northbound.tables import TABLES
from calabash.net.ovn.translation.platform import platform_rows
from calabash.net.ovn.translation.view import NetworkHosts
from calabash.net.ovn.translation.vpc import vpc_rows
from calabash.net.store.networks import Networks

HOSTS = NetworkHosts(gateways=("g1", "g2"))


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    """Draw the rows of a VPC with random columns."""
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=4))
    served = draw(st.booleans())
    items: list[NetworkObject] = [
        vpc("red", "10.0.0.0/16", "fd00::/56"),
        subnet("red/a", "10.0.1.0/24", "fd00::/64", served=served),
    ]
    items += [port(f"red/a/{name}") for name in names]
    return vpc_rows(build_networks(*items), "red", hosts=HOSTS)


@given(wanted=rows(), found=rows())
def test_changes_transform_observed_into_desired_rows(wanted: Rows, found: Rows) -> None:
    changes = diff(wanted, found)
    assert apply_changes(changes, found) == wanted
    assert diff(wanted, apply_changes(changes, found)) == ()


@given(wanted=rows(), found=rows())
def test_referenced_rows_are_inserted_first_and_deleted_last(wanted: Rows, found: Rows) -> None:
    known = set(found)
    for change in diff(wanted, found):
        if isinstance(change, Delete):
            known.remove(change.row)
            continue
        if isinstance(change, Insert):
            known.add(change.row)
        for value in change.columns.values():
            for item in value if isinstance(value, frozenset) else (value,):
                assert not isinstance(item, Ref) or item in known
    assert known == set(wanted)


def test_foreign_keys_of_shared_maps_stay_and_owned_columns_are_restored() -> None:
    wanted = vpc_rows(build_networks(vpc("red")), "red", hosts=HOSTS)
    router = Ref("Logical_Router", "cb-red")
    ids = {"calabash:vpc": "red", "calabash:revision": "7", "somebody": "else"}
    found = {**wanted, router: {**wanted[router], "external_ids": ids, "options": {"chassis": "h1"}}}
    (change,) = diff(wanted, found)
    assert change == Update(router, {"options": wanted[router]["options"]})
    assert apply_changes((change,), found)[router]["external_ids"] == ids


def test_global_options_are_compared_by_key_and_never_deleted() -> None:
    wanted = platform_rows(Networks())
    row = Ref("NB_Global", ".")
    found: Rows = {row: {"options": {"mac_prefix": "0a:00:00", "bfd-mult": "9"}}}
    changes = diff(wanted, found)
    after = apply_changes(changes, found)
    assert after[row]["options"] == {"mac_prefix": "0a:00:00"} | dict(wanted[row]["options"])  # type: ignore[arg-type]
    assert diff(wanted, after) == ()
    assert diff({}, found) == ()


def test_tables_are_in_an_order_in_which_rows_can_be_inserted() -> None:
    rank = list(TABLES)
    for before, after in (("ACL", "Port_Group"), ("Logical_Switch_Port", "Port_Group"), ("Logical_Router_Port", "NAT")):
        assert rank.index(before) < rank.index(after)
