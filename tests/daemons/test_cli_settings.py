"""``create`` and ``set`` of queues, tenants, projects, users and notifications, on a pool of three simulated devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.daemons.terminal import Terminal, own_pool


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """Yield a terminal at a pool of its own."""
    with own_pool(tmp_path_factory.mktemp("settings"), "3xT4") as made:
        yield made


def row(pool: Terminal, kind: str, name: str, *place: str) -> dict[str, Any]:
    """Return one object of a list."""
    (found,) = [item for item in pool.items(*kind.split(), "list", *place) if item["name"] == name]
    return found


def chosen(found: dict[str, Any], *fields: str) -> tuple[Any, ...]:
    return tuple(found[field] for field in fields)


QUEUE = ("parent", "guarantee", "limit", "weight", "users", "groups")


def test_queue_set_changes_only_what_is_named(pool: Terminal) -> None:
    pool("queue", "create", "top", "--guarantee", "2")
    pool(
        *("queue", "create", "prod", "--parent", "top", "--guarantee", "1", "--limit", "2", "--weight", "3"),
        *("--users", "games,news", "--groups", "mail"),
    )
    before: tuple[Any, ...] = ("top", 1.0, 2.0, 3.0, ["games", "news"], ["mail"])
    assert chosen(row(pool, "queue", "prod"), *QUEUE) == before
    for words, place, value in (
        (("--weight", "2"), 3, 2.0),
        (("--limit", "none"), 2, None),
        (("--guarantee", "0.5"), 1, 0.5),
        (("--groups", ""), 5, []),
        (("--parent", ""), 0, ""),
        (("--users", "games"), 4, ["games"]),
    ):
        pool("queue", "set", "prod", *words)
        before = (*before[:place], value, *before[place + 1 :])
        assert chosen(row(pool, "queue", "prod"), *QUEUE) == before, words


def test_users_and_groups_of_a_queue_are_added_and_removed_one_by_one(pool: Terminal) -> None:
    pool("queue", "create", "lists", "--guarantee", "0.1", "--users", "games", "--groups", "mail")
    pool("queue", "set", "lists", "--add-user", "news", "--add-user", "lp,games", "--add-group", "news")
    assert chosen(row(pool, "queue", "lists"), "users", "groups") == (["games", "news", "lp"], ["mail", "news"])
    pool("queue", "set", "lists", "--remove-user", "news", "--remove-group", "mail")
    assert chosen(row(pool, "queue", "lists"), "users", "groups") == (["games", "lp"], ["news"])
    assert row(pool, "queue", "lists")["guarantee"] == 0.1
    refused = pool.refused(3, "queue", "set", "lists", "--remove-user", "nobody")
    assert "nobody is not one of the users of queue lists" in refused
    assert "games, lp" in refused


def test_members_of_a_tenant_are_added_and_removed_one_by_one(pool: Terminal) -> None:
    pool("tenant", "create", "readers", "--limit", "1", "--users", "games", "--groups", "mail")
    pool("tenant", "set", "readers", "--add-user", "news", "--add-group", "news")
    assert chosen(row(pool, "tenant", "readers"), "users", "groups") == (["games", "news"], ["mail", "news"])
    pool("tenant", "set", "readers", "--remove-user", "games", "--remove-group", "mail")
    assert chosen(row(pool, "tenant", "readers"), "limit", "users", "groups") == (1.0, ["news"], ["news"])
    assert "not one of the members" in pool.refused(3, "tenant", "set", "readers", "--remove-user", "games")


KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "queue": ((), ("--limit", "2")),
    "tenant": ((), ("--limit", "2")),
    "tenant project": (("there",), ("--limit", "2")),
    "user": ((), ("--email", "ann@example.org")),
    "notify": ((), ("--webhook", "https://hooks.example.org/gpu")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_create_refuses_what_exists_and_set_what_does_not(pool: Terminal, kind: str) -> None:
    place, options = KINDS[kind]
    if place:
        pool("tenant", "create", place[0], code=None)
    group = kind.split()
    name = f"{group[-1]}1"
    assert f"calabash {kind} create" in pool.refused(3, *group, "set", *place, name, *options)
    assert name not in [item["name"] for item in pool.items(*group, "list", *place)]
    pool(*group, "create", *place, name, *options)
    made = row(pool, kind, name, *place)
    assert f"calabash {kind} set" in pool.refused(1, *group, "create", *place, name, *options)
    assert "no change was given" in pool.refused(2, *group, "set", *place, name)
    pool(*group, "set", *place, name, *options)
    assert row(pool, kind, name, *place) == made


def test_queue_default_exists_and_can_be_changed(pool: Terminal) -> None:
    assert "exists already" in pool.refused(1, "queue", "create", "default")
    pool("queue", "set", "default", "--weight", "2")
    assert row(pool, "queue", "default")["weight"] == 2.0
    pool("queue", "set", "default", "--weight", "1")


def test_set_refuses_a_tenant_and_a_project_that_do_not_exist(pool: Terminal) -> None:
    pool("tenant", "create", "firm", "--guarantee", "0.2")
    pool.refused(3, "tenant", "set", "frim", "--guarantee", "0.1")
    pool.refused(3, "tenant", "project", "set", "firm", "trian", "--guarantee", "0.1")
    assert "frim" not in [t["name"] for t in pool.items("tenant", "list")]
    assert pool.items("tenant", "project", "list", "firm") == []
    assert "no change was given" in pool.refused(2, "tenant", "set", "firm")


def test_notification_keeps_what_set_does_not_name(pool: Terminal) -> None:
    secret = pool("notify", "create", "hook", "--webhook", "https://hooks.example.org/a", "--event", "budget").stdout
    assert secret.startswith("whsec_")
    assert pool("notify", "set", "hook", "--event", "over-use").stdout == "hook\n"
    assert chosen(row(pool, "notify", "hook"), "target", "kinds") == ("https://hooks.example.org/a", ["over-use"])
    assert pool("notify", "set", "hook", "--webhook", "https://hooks.example.org/b").stdout == "hook\n"
    assert chosen(row(pool, "notify", "hook"), "target", "kinds") == ("https://hooks.example.org/b", ["over-use"])
    assert pool("notify", "set", "hook", "--new-secret").stdout not in {secret, "hook\n"}
    pool("notify", "set", "hook", "--on-all")
    assert row(pool, "notify", "hook")["kinds"] == []


@pytest.mark.parametrize("kind", ["tenant", "queue"])
def test_guarantee_of_more_devices_than_there_are_is_set_with_a_warning(pool: Terminal, kind: str) -> None:
    option = {"tenant": "--guarantee", "queue": "--guarantee"}[kind]
    done = pool(kind, "create", "large", option, "99")
    assert done.stdout == "large\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: ")
    assert "and there are 3" in line
    assert pool(kind, "set", "large", option, "0.1").stderr == ""
    pool(kind, "delete", "large")


def test_hint_for_a_queue_that_a_user_may_not_use_adds_the_user() -> None:
    from calabash.model.errors import CalabashError
    from calabash.model.tenancy import Principal
    from calabash.platform.access.permission import Permission

    with pytest.raises(CalabashError) as refused:
        Permission(0, everybody=True).require_queue(Principal(user="ann", uid=4242), "prod", ["bob"], [])
    assert "calabash queue set prod --add-user ann" in (refused.value.hint or "")


def test_program_on_the_account_of_a_tenant_that_does_not_exist_is_refused(pool: Terminal) -> None:
    refused = pool.refused(3, "run", "--tenant", "visoin", "--memory", "1GiB", "--", "true")
    assert "there is no tenant visoin" in refused
    assert "calabash tenant create visoin" in refused
    pool.refused(3, "job", "start", "--tenant", "visoin", "--memory", "1GiB", "--", "true")
    pool("run", "--tenant", "games", "--memory", "1GiB", "--cores", "10", "--", "true")  # an account of this machine
    pool("tenant", "create", "vision")
    pool("run", "--tenant", "vision", "--memory", "1GiB", "--cores", "10", "--", "true")


def test_gang_without_a_size_is_refused(pool: Terminal) -> None:
    for words in (("run",), ("job", "start")):
        assert "--gang-size 4" in pool.refused(2, *words, "--gang", "g", "--memory", "1GiB", "--", "true")
    pool("run", "--gang", "g", "--gang-size", "1", "--memory", "1GiB", "--cores", "10", "--", "true")


@pytest.mark.parametrize(
    "words",
    [
        ("tenant", "create", "timed", "--run-time", "12"),
        ("run", "--wait", "60", "--", "true"),
        ("run", "--time", "1.5", "--", "true"),
        ("user", "token", "create", "--expires", "90"),
        ("device", "drain", "0", "--evict", "--grace", "5"),
        ("top", "--interval", "2"),
    ],
    ids=" ".join,
)
def test_time_without_a_unit_is_refused_with_the_units(pool: Terminal, words: tuple[str, ...]) -> None:
    said = pool.refused(2, *words)
    assert "has no unit" in said
    assert "whichever is meant" in said


def test_time_of_zero_needs_no_unit(pool: Terminal) -> None:
    pool("tenant", "create", "endless", "--run-time", "12h")
    pool("tenant", "set", "endless", "--run-time", "0")
    assert row(pool, "tenant", "endless")["run_s_max"] == 0


def test_role_of_a_user_that_does_not_exist_is_refused(pool: Terminal) -> None:
    assert "there is no user mayr" in pool.refused(3, "user", "role", "mayr", "viewer")
    pool("user", "role", "games", "viewer")  # an account of this machine
    pool("user", "unrole", "games")
