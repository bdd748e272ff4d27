"""Tests of the controller's writes to the northbound database, with real OVSDB servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.world import until
from tests.net.servers import DatabaseServer

from calabash.adapters.ovn.northbound import GLOBAL, Northbound
from calabash.adapters.ovn.session import Session
from calabash.model.errors import CalabashError, Reason
from calabash.net.ovn.northbound.changes import diff
from calabash.net.ovn.northbound.rows import KEY, OWNER, PLATFORM, Columns, Delete, Insert, Ref, Rows, Update, Value
from calabash.net.ovn.northbound.tables import TABLES

WITHIN_S = 90.0


def row(table: str, owner: str, key: str, **columns: Value) -> Columns:
    owned = TABLES[table]
    marks = {OWNER: owner} | ({} if owned.named else {KEY: key})
    return {**owned.columns, "external_ids": marks, **columns}


def vpc_rows(vpc: str, ports: int = 2) -> Rows:
    """Return the rows of a router, a switch with ports, a group with all of them and an ACL."""
    names = [f"{vpc}/a/p{number}" for number in range(ports)]
    members = frozenset(Ref("Logical_Switch_Port", name) for name in names)
    rows: dict[Ref, Columns] = {}
    for number, name in enumerate(names):
        address = f"0a:00:00:00:00:{number:02x} 10.0.0.{number + 2}"
        rows[Ref("Logical_Switch_Port", name)] = row(
            "Logical_Switch_Port", vpc, name, addresses=frozenset((address,)), port_security=frozenset((address,))
        )
    acl = Ref("ACL", f"{vpc}:drop")
    group = f"cb.{vpc}.drop"
    rows[acl] = row(
        "ACL", vpc, acl.key, priority=1000, direction="to-lport", match=f"outport == @{group}", action="drop"
    )
    rows[Ref("Port_Group", group)] = row("Port_Group", vpc, group, ports=members, acls=frozenset((acl,)))
    rows[Ref("Logical_Switch", f"cb-{vpc}/a")] = row("Logical_Switch", vpc, f"cb-{vpc}/a", ports=members)
    rows[Ref("Logical_Router", f"cb-{vpc}")] = row(
        "Logical_Router", vpc, f"cb-{vpc}", options={"dynamic_neigh_routers": "true"}
    )
    return rows


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DatabaseServer]:
    made = DatabaseServer(tmp_path / "nb")
    made.start()
    yield made
    made.kill()


@pytest.fixture
def northbound(server: DatabaseServer) -> Iterator[Northbound]:
    made = Northbound(server.remote)
    try:
        made.session.wait_ready(WITHIN_S)
        assert made.session.wait_lock(WITHIN_S)
        yield made
    finally:
        made.close()


def put(northbound: Northbound, vpc: str, rows: Rows, revision: int = 1) -> int:
    return northbound.apply(diff(rows, northbound.actual(vpc)), revisions={vpc: revision})


def test_rows_that_are_written_are_read_as_they_were_meant(northbound: Northbound, server: DatabaseServer) -> None:
    rows = vpc_rows("red")
    assert put(northbound, "red", rows, revision=7) == 1
    assert diff(rows, northbound.actual("red")) == ()
    put(northbound, "red", rows, revision=8)
    assert northbound.revision("red") == 7  # nothing was written
    assert diff(rows, northbound.actual("red")) == ()
    assert northbound.owners() == {"red"}
    assert "red/a/p0" in server.ctl("lsp-list", "cb-red/a")
    assert "outport == @cb.red.drop" in server.ctl("acl-list", "cb.red.drop")


def test_every_transaction_counts_nb_cfg_up_also_one_that_finds_no_row_of_the_whole(northbound: Northbound) -> None:
    assert [northbound.beat() for _ in range(3)] == [1, 2, 3]
    assert put(northbound, "red", vpc_rows("red")) == 4
    assert northbound.counts() == (4, 0)


def test_what_is_removed_leaves_nothing(northbound: Northbound, server: DatabaseServer) -> None:
    put(northbound, "red", vpc_rows("red"))
    put(northbound, "red", {})
    assert northbound.owners() == frozenset()
    assert [server.rows(table) for table in TABLES if table != "NB_Global"] == [[]] * (len(TABLES) - 1)


def test_many_vpcs_go_in_one_transaction_and_one_that_fails_leaves_none(northbound: Northbound) -> None:
    both = {**vpc_rows("red"), **vpc_rows("blue")}
    northbound.apply(diff(both, {}))
    assert northbound.owners() == {"red", "blue"}
    bad = dict(vpc_rows("green"))
    bad[Ref("ACL", "green:drop")] = row(
        "ACL", "green", "green:drop", priority=70000, direction="to-lport", action="drop"
    )
    with pytest.raises(CalabashError, match="refuses insert ACL") as refused:
        northbound.apply(diff({**bad, **vpc_rows("white")}, {}))
    assert refused.value.reason is Reason.CONFLICT
    assert northbound.owners() == {"red", "blue"}


def test_name_that_leads_nowhere_is_an_error_and_never_left_out(northbound: Northbound) -> None:
    rows = dict(vpc_rows("red"))
    group = Ref("Port_Group", "cb.red.drop")
    rows[group] = {**rows[group], "ports": frozenset((Ref("Logical_Switch_Port", "red/a/nobody"),))}
    with pytest.raises(
        CalabashError, match=r"ports of Port_Group cb\.red\.drop refers to .* red/a/nobody, which does not exist"
    ):
        northbound.apply(diff(rows, {}))
    rows[group] = {**rows[group], "ports": frozenset(("red/a/p0",))}  # a name where a row is meant
    with pytest.raises(CalabashError, match="must be a row, not 'red/a/p0'"):
        northbound.apply(diff(rows, {}))
    assert northbound.owners() == frozenset()


def test_values_of_a_wrong_type_are_errors(northbound: Northbound) -> None:
    rows = vpc_rows("red")
    for table, key, column, value in (
        ("ACL", "red:drop", "priority", "1000"),
        ("ACL", "red:drop", "log", 1),
        ("Logical_Switch_Port", "red/a/p0", "type", None),
        ("Logical_Router", "cb-red", "options", "true"),
    ):
        bad = {**rows, Ref(table, key): {**rows[Ref(table, key)], column: value}}
        with pytest.raises(CalabashError, match=f"{column} of {table} {key} must be"):
            northbound.apply(diff(bad, {}))
    with pytest.raises(CalabashError, match="no column colour in ACL"):
        northbound.apply([Insert(Ref("ACL", "x"), {"external_ids": {OWNER: "red"}, "colour": "red"})])
    assert northbound.owners() == frozenset()


def test_row_without_an_owner_is_not_written(northbound: Northbound) -> None:
    with pytest.raises(CalabashError, match="has no owner"):
        northbound.apply([Insert(Ref("Logical_Switch", "cb-x"), {"name": "cb-x"})])


def test_row_that_nothing_refers_to_and_that_the_database_drops_is_told(northbound: Northbound) -> None:
    rows = dict(vpc_rows("red"))
    group = Ref("Port_Group", "cb.red.drop")
    rows[group] = {**rows[group], "acls": frozenset()}
    with pytest.raises(CalabashError, match="ACL red:drop was inserted and removed at once"):
        northbound.apply(diff(rows, {}))


def test_update_of_a_row_that_has_gone_is_an_error(northbound: Northbound, server: DatabaseServer) -> None:
    put(northbound, "red", vpc_rows("red"))
    server.ctl("lr-del", "cb-red")
    until(lambda: Ref("Logical_Router", "cb-red") not in northbound.actual("red"))
    with pytest.raises(CalabashError, match="Logical_Router cb-red would be updated, but does not exist"):
        northbound.apply([Update(Ref("Logical_Router", "cb-red"), {"enabled": False})])
    northbound.apply([Delete(Ref("Logical_Router", "cb-red"))])  # what has gone is as it should be


def test_rows_of_others_are_neither_seen_nor_touched(northbound: Northbound, server: DatabaseServer) -> None:
    server.ctl("ls-add", "theirs", "--", "lsp-add", "theirs", "their-port", "--", "lr-add", "cb-theirs-too-but-marked")
    server.ctl("set", "logical_router", "cb-theirs-too-but-marked", "external_ids:neutron=x")
    put(northbound, "red", vpc_rows("red"))
    put(northbound, "red", {})
    assert "their-port" in server.ctl("lsp-list", "theirs")
    assert northbound.owners() == frozenset()
    assert "cb-theirs-too-but-marked" in server.ctl("lr-list")


def test_keys_of_others_in_shared_maps_stay(northbound: Northbound, server: DatabaseServer) -> None:
    rows = vpc_rows("red")
    put(northbound, "red", rows)
    server.ctl("set", "logical_router", "cb-red", "external_ids:theirs=kept", f'external_ids:"{OWNER}"=blue')
    until(lambda: "blue" in northbound.owners())
    northbound.apply([Delete(ref) for ref in northbound.actual("blue")] + list(diff(rows, northbound.actual("red"))))
    assert diff(rows, northbound.actual("red")) == ()
    server.ctl("set", "NB_Global", ".", "options:northd=theirs")
    until(lambda: "northd" in str(northbound.actual(PLATFORM)))
    northbound.apply(diff({GLOBAL: {"options": {"bfd-mult": "3"}}}, northbound.actual(PLATFORM)))
    assert northbound.actual(PLATFORM)[GLOBAL]["options"] == {"northd": "theirs", "bfd-mult": "3"}


def test_switch_that_lost_its_mark_is_taken_back_and_not_doubled(
    northbound: Northbound, server: DatabaseServer
) -> None:
    rows = vpc_rows("red")
    put(northbound, "red", rows)
    server.ctl(
        "clear",
        "Logical_Switch",
        "cb-red/a",
        "external_ids",
        "--",
        "clear",
        "Logical_Switch_Port",
        "red/a/p0",
        "external_ids",
    )
    until(lambda: len(northbound.actual("red")) == len(rows) - 2)
    put(northbound, "red", rows)
    assert diff(rows, northbound.actual("red")) == ()
    assert len(server.rows("Logical_Switch", "name")) == 1


def test_second_row_of_the_same_key_goes(northbound: Northbound, server: DatabaseServer) -> None:
    rows = vpc_rows("red")
    put(northbound, "red", rows)
    server.ctl("--id=@x", "create", "Logical_Router", "name=cb-red", f'external_ids:"{OWNER}"=red')
    until(lambda: len(northbound.actual("red")) == len(rows) + 1)
    put(northbound, "red", rows)
    assert northbound.actual("red").keys() == rows.keys()
    assert len(server.rows("Logical_Router", "name")) == 1


def test_large_sets_are_changed_by_their_members(northbound: Northbound, server: DatabaseServer) -> None:
    put(northbound, "red", vpc_rows("red", 60))
    rows = vpc_rows("red", 61)
    changes = diff(rows, northbound.actual("red"))
    northbound.apply(changes)
    assert diff(rows, northbound.actual("red")) == ()
    fewer = vpc_rows("red", 40)
    northbound.apply(diff(fewer, northbound.actual("red")))
    assert len(server.ctl("lsp-list", "cb-red/a").splitlines()) == 40


def test_name_of_a_lock_with_a_hyphen_is_refused_as_it_would_never_be_given(server: DatabaseServer) -> None:
    with pytest.raises(CalabashError, match="is not a valid name of an OVSDB lock"):
        Northbound(server.remote, lock="platform-vpc")


def test_only_one_of_two_controllers_writes_and_the_other_takes_over(
    northbound: Northbound, server: DatabaseServer
) -> None:
    second = Northbound(server.remote)
    try:
        second.session.wait_ready(WITHIN_S)
        assert not second.session.has_lock
        with pytest.raises(CalabashError, match="another controller has the lock"):
            second.apply(diff(vpc_rows("red"), {}))
        assert northbound.owners() == frozenset()
        northbound.close()
        assert second.session.wait_lock(WITHIN_S)
        put(second, "red", vpc_rows("red"))
    finally:
        second.close()


def test_two_clients_in_one_process_speak_to_their_own_databases(northbound: Northbound, tmp_path: Path) -> None:
    other = DatabaseServer(tmp_path / "other")
    other.start()
    second = Northbound(other.remote)
    try:
        second.session.wait_ready(WITHIN_S)
        put(second, "blue", vpc_rows("blue"))
        put(northbound, "red", vpc_rows("red"))
        assert northbound.owners() == {"red"}
        assert second.owners() == {"blue"}
    finally:
        second.close()
        other.kill()


def test_server_that_comes_back_is_found_and_all_is_read_anew(northbound: Northbound, server: DatabaseServer) -> None:
    put(northbound, "red", vpc_rows("red"))
    server.kill()
    until(lambda: not northbound.session.ready)
    with pytest.raises(CalabashError) as gone:
        northbound.apply(diff(vpc_rows("blue"), {}), timeout_s=0.2)
    assert gone.value.reason is Reason.UNREACHABLE
    server.file.unlink()
    server.start()
    northbound.session.wait_ready(WITHIN_S)
    assert northbound.session.wait_lock(WITHIN_S)
    assert northbound.owners() == frozenset()  # the database is another one, and nothing of the old is believed
    put(northbound, "red", vpc_rows("red"))


def test_edits_of_own_rows_are_noticed_and_edits_of_other_rows_are_not(server: DatabaseServer) -> None:
    told: list[frozenset[str]] = []
    full: list[None] = []
    northbound = Northbound(server.remote, touched=told.append, synchronized=lambda: full.append(None))
    try:
        northbound.session.wait_ready(WITHIN_S)
        assert len(full) == 1
        northbound.session.wait_lock(WITHIN_S)
        put(northbound, "red", vpc_rows("red"))
        told.clear()
        server.ctl("ls-add", "theirs")
        server.ctl("set", "logical_router", "cb-red", "external_ids:theirs=x")
        server.ctl("set", "logical_router", "cb-red", "options:dynamic_neigh_routers=false")
        until(lambda: told)
        assert told == [frozenset(("red",))]
        server.control("ovsdb-server/reconnect")  # closes all connections
        until(lambda: len(full) == 2)
    finally:
        northbound.close()


def test_table_that_this_version_lacks_is_told(server: DatabaseServer) -> None:
    session = Session(server.remote, "OVN_Northbound", {"Colour": ("name",)})
    try:
        with pytest.raises(CalabashError, match="no table Colour"):
            session.wait_ready(2.0)
    finally:
        session.close()


@pytest.mark.parametrize("remote", ["", "nb.sock", "unix:", "tcp:host", "http:host:1", "ssl:host:x"])
def test_remotes_that_cannot_be_meant_are_refused(remote: str) -> None:
    with pytest.raises(CalabashError, match="OVSDB server"):
        Northbound(remote)


def test_columns_and_optional_values_of_our_tables_are_those_of_the_schema(northbound: Northbound) -> None:
    """Each default of ours is what the database has for it, so that nothing differs for ever."""
    with northbound.session.reading() as replica:
        types = dict(replica.types)
    for name, table in TABLES.items():
        for column, value in table.columns.items():
            kind = types[name][column]
            assert type(kind.default()) is type(value), f"{name}.{column}: {dataclasses.asdict(kind)}"
