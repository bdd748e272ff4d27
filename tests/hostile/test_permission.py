"""Attacks with the names of other users' objects: queues, tenants, gangs, allocations, and whole pools."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.api_client import PathClient
from tests.daemons.world import until
from tests.hostile.people import User
from tests.hostile.world import HostileWorld

from calabash.model.errors import CalabashError


def _ask(home: str, body: dict[str, Any]) -> str:
    """Return the outcome of a request: "granted" or the reason of its refusal."""
    pool = PathClient(Path(home))
    try:
        granted = pool.post("/v1/allocations", body)
    except CalabashError as error:
        return str(error.reason)
    pool.delete(f"/v1/allocations/{granted['id']}?force=1")
    return "granted"


def _call(home: str, method: str, path: str, body: Any = None) -> str:
    try:
        PathClient(Path(home)).call(method, path, body)
    except CalabashError as error:
        return str(error.reason)
    return "done"


SMALL: dict[str, Any] = {"memory_mib": 256, "cores": 1, "policy": "best-effort"}


def test_a_queue_with_a_guarantee_serves_only_users_on_its_access_list(
    world: HostileWorld, mallory: User, eve: User
) -> None:
    world.client.put("/v1/queues/prod", {"deserved": 1.0, "users": [str(eve.uid)]})
    with world.unharmed():
        assert mallory.does(_ask, str(world.home), SMALL | {"queue": "prod"}) == "not_permitted"
        assert eve.does(_ask, str(world.home), SMALL | {"queue": "prod"}) == "granted"


def test_a_user_without_access_to_a_queue_cannot_evict_by_its_guarantee(
    world: HostileWorld, mallory: User, eve: User
) -> None:
    world.client.put("/v1/queues/prod", {"deserved": 2.0})
    borrowed = eve.runs("/bin/cat", memory_mib=512, cores=10)
    until(lambda: world.running_allocation(borrowed), what="the borrower to run")
    with world.unharmed():
        answer = mallory.does(_ask, str(world.home), {"gpus": 2, "mode": "exclusive", "queue": "prod", "wait_s": 0.5})
        assert answer == "not_permitted"
        assert borrowed.alive()


def test_tenant_names_of_others_are_refused(world: HostileWorld, mallory: User) -> None:
    neighbour = world.neighbour
    assert neighbour is not None
    with world.unharmed():
        for tenant in ("root", str(neighbour.user.uid)):
            assert mallory.does(_ask, str(world.home), SMALL | {"tenant": tenant}) == "not_permitted"


def test_only_administrators_change_queues_and_stop_the_pool(world: HostileWorld, mallory: User) -> None:
    home = str(world.home)
    with world.unharmed():
        assert mallory.does(_call, home, "PUT", "/v1/queues/mine", {"deserved": 2.0}) == "not_permitted"
        assert mallory.does(_call, home, "DELETE", "/v1/queues/default") == "not_permitted"
        assert mallory.does(_call, home, "POST", "/v1/shutdown", {"force": True}) == "not_permitted"


def test_other_users_allocations_cannot_be_touched(world: HostileWorld, mallory: User) -> None:
    neighbour = world.neighbour
    assert neighbour is not None
    allocation = neighbour.allocation["id"]
    with world.unharmed():
        for method, path, body in (
            ("DELETE", f"/v1/allocations/{allocation}?force=1", None),
            ("POST", f"/v1/allocations/{allocation}/started", {"pid": os.getpid()}),
        ):
            # not even its existence is revealed
            assert mallory.does(_call, str(world.home), method, path, body) == "not_found"


def test_gangs_of_the_same_name_are_two_gangs_when_two_users_have_them(
    world: HostileWorld, mallory: User, eve: User
) -> None:
    body: dict[str, Any] = SMALL | {"gang": "train", "gang_size": 2, "wait_s": 3}
    with world.unharmed():
        alone = mallory.runs("/bin/cat", **body)
        pair = [eve.runs("/bin/cat", **body) for _ in range(2)]
        until(lambda: all(world.running_allocation(member) for member in pair), what="both of one user to start")
        assert not [a for a in world.held_by(mallory) if a["state"] == "running"]
        assert "refused" in until(alone.text, what="the one that is alone to be refused")


def _answers(home: str, asked: list[tuple[str, str, Any]], times: int) -> list[tuple[str, float]]:
    """Return each call's answer (reason, message and hint, or the reply) and the least time that it took."""
    pool = PathClient(Path(home))
    found = []
    for method, path, body in asked:
        costs = []
        for _ in range(times):
            begun = time.perf_counter()
            try:
                answer = json.dumps(pool.call(method, path, body), sort_keys=True)
            except CalabashError as error:
                answer = f"{error.reason}: {error.message}; {error.hint}"
            costs.append(time.perf_counter() - begun)
        found.append((answer, min(costs)))
    return found


def _by_name(name: str) -> list[tuple[str, str, Any]]:
    """Return all API calls in which a user can name an object, each with the given name in one place."""
    ask, at = "/v1/allocations", f"/v1/allocations/{name}"
    return [
        *(("POST", ask, SMALL | {field: name}) for field in ("queue", "tenant", "project")),
        ("POST", ask, SMALL | {"gang": name, "gang_size": 2}),
        ("POST", ask, SMALL | {"gang": name, "gang_size": 2, "wait_s": 0.05}),
        ("POST", ask, SMALL | {"gang": name, "gpus": 99}),
        ("POST", ask, SMALL | {"ports": [f"{name}/sub/mine"]}),
        ("GET", f"{at}/why", None),
        ("GET", f"{at}/environment", None),
        ("POST", f"{at}/started", {"pid": 1}),
        ("POST", f"{at}/keep", {}),
        ("PUT", f"{at}/queue/default", None),
        ("DELETE", f"{at}?force=1", None),
        ("GET", f"/v1/tenants/{name}", None),
        ("GET", f"/v1/tenants/{name}/projects", None),
        ("GET", f"/v1/users/{name}", None),
        ("GET", f"/v1/jobs/{name}", None),
        ("DELETE", f"/v1/jobs/{name}", None),
        ("DELETE", f"/v1/queues/{name}", None),
        ("DELETE", f"/v1/tokens/{name}", None),
        ("GET", f"/v1/invoices/draft-{name}-2026-01", None),
        ("GET", f"/v1/networks/objects?vpc={name}", None),
        ("GET", f"/v1/networks/objects/vpc?name={name}", None),
        ("GET", f"/v1/usage?tenant={name}", None),
        ("GET", f"/v1/notifications?tenant={name}", None),
    ]


def test_a_hidden_object_is_answered_like_an_object_that_does_not_exist(
    world: HostileWorld, mallory: User, eve: User
) -> None:
    client = world.client
    client.put("/v1/tenants/qztenant", {"users": [str(eve.uid)]})
    client.put("/v1/tenants/qztenant/projects/qzproject", {})
    client.put("/v1/queues/qzqueue", {"users": [str(eve.uid)]})
    client.put("/v1/networks/objects", {"kind": "vpc", "name": "qzvpc", "spec": {"cidrs": ["10.9.0.0/16"]}})
    held = eve.runs("/bin/cat", **SMALL, tenant="qztenant", project="qzproject", gang="qzgang")
    allocation = until(lambda: world.running_allocation(held), what="the hidden program to run")
    hidden = [allocation["id"], "qztenant", "qzproject", "qzqueue", "qzvpc", "qzgang", str(eve.uid)]
    home = str(world.home)
    with world.unharmed():
        try:
            _require_alike(home, hidden, mallory)
        finally:
            held.let_end()
            until(lambda: not world.held_by(eve), what="the hidden program to end")
            client.delete("/v1/networks/objects/vpc?name=qzvpc&cascade=1")
            client.delete("/v1/tenants/qztenant/projects/qzproject")
            client.delete("/v1/tenants/qztenant")


def _require_alike(home: str, hidden: list[str], mallory: User) -> None:
    for name in hidden:
        nobodys = "".join("x" if c.isalpha() else "7" for c in name)
        told = mallory.does(_answers, home, _by_name(name), 3)
        ghost = mallory.does(_answers, home, _by_name(nobodys), 3)
        for call, one, other in zip(_by_name(name), told, ghost, strict=True):
            assert _without(one[0], name) == _without(other[0], nobodys), call
            assert one[1] < 30 * other[1] + 0.05, f"{call}: {one[1]} s for what is there, {other[1]} s for nothing"
            assert other[1] < 30 * one[1] + 0.05, f"{call}: {other[1]} s for nothing, {one[1]} s for what is there"


def _without(text: str, name: str) -> str:
    """Return the answer without the name of the request, and without the IDs of created requests."""
    return re.sub(r"\ba[a-z0-9]{8}\b", "<id>", text.replace(name, "<name>"))


@pytest.fixture
def users_pool(world: HostileWorld, mallory: User) -> Iterator[Path]:
    """Run a pool that an ordinary user has started for itself, on the same simulated node."""
    directory = Path(tempfile.mkdtemp(prefix="calabash-hostile-user-"))
    home = directory / "home"
    home.mkdir()
    (home / "sim" / "lab").mkdir(parents=True)
    (home / "sim" / "lab" / "node.state").symlink_to(world.state_file)
    for path in (directory, *directory.rglob("*")):
        os.lchown(path, mallory.uid, mallory.uid)
    yield home
    subprocess.run(["rm", "-rf", str(directory)], check=True)


def test_a_users_own_pool_serves_nobody_else(world: HostileWorld, users_pool: Path, mallory: User, eve: User) -> None:
    # The interpreter may be readable by root only: the user gets only the right to read it.
    uid, reading = str(mallory.uid), "+dac_read_search"
    become = ["/usr/bin/setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--inh-caps", reading]
    command = [*become, "--ambient-caps", reading, sys.executable, "-m", "calabash.pool.daemon", "--sim", "lab"]
    root = User(0, world.home)
    daemon = root.starts(*command, "--home", users_pool, environment={"PATH": "/usr/bin:/bin", "HOME": str(users_pool)})

    def up() -> bool:
        assert daemon.alive(), daemon.text()
        return bool(mallory.does(_call, str(users_pool), "GET", "/v1/status") == "done")

    until(up, what="the user's pool to answer")
    with world.unharmed():
        assert eve.does(_call, str(users_pool), "GET", "/v1/status") == "not_permitted"
        assert eve.does(_ask, str(users_pool), SMALL) == "not_permitted"
        assert mallory.does(_ask, str(users_pool), SMALL) == "granted"
    root.vanish()
