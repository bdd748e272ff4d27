"""Tenant networks by commands and files on a real pool, which may be killed at any moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.api_client import PathClient
from tests.certificates import server_context
from tests.daemons.network import Network, network
from tests.daemons.world import World, until

from calabash.cli.commands import cli
from calabash.controllers.sources.network_source import PoolNetworks
from calabash.model.errors import CalabashError, Reason
from calabash.model.tenancy import Role

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples" / "networks").glob("*.yaml"))
ISSUED = """\
net vpc create red --cidr 10.0.0.0/16
net vpc create blue --cidr 10.0.0.0/16
net vpc create green --cidr 10.9.0.0/16
net subnet create red/a --cidr 10.0.1.0/24 --dhcp --dns
net subnet create blue/a --cidr 10.0.1.0/24
net port create red/a/web1 --ip 10.0.1.11
net port create red/a/web2
net lb create red/web --vip 10.0.1.100:80 --backends web1:8080,web2:8080 --check http:/healthz
net lb create red/plain --vip 10.0.1.101:80 --backends web1:8080 --backends a/web2:8080 --check tcp
net uplink create up --cidr 198.51.100.0/24 --gateway 198.51.100.1
net gateway create red/out --snat --address 198.51.100.7
net eip create red/one
net eip create red/two --address 198.51.100.9
net nat dnat red/ssh --eip one --outside 2222 --forward-to web1:22
net fip create red/whole --eip red/two --target web2
net peer create red/green --routes 10.9.0.0/16
net peer create green/red
net line create red/dc1 --vlan 100 --cidr 172.16.0.0/29 --address 172.16.0.1 --peer 172.16.0.2 --routes 192.168.0.0/16
net endpoint create blue/models --balancer red/web
net sg create red/db
net sg rule add red/default --allow tcp:443 --from 0.0.0.0/0
net sg rule add red/default --allow udp:5000-5010 --to db
net qos set red/a/web1 --rate 1Gbit
net qos create red/slow --egress 500kbit --ingress 10Mbit
net route create red/lab --destination 10.50.0.0/16 --via 10.0.1.11
net dns create red/db --host db.internal --address 10.0.1.5
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("networks") / "home", "1xT4")
    try:
        made.up()
        yield made
    finally:
        made.close()


@pytest.fixture
def clean(world: World) -> World:
    """Return the shared pool after deleting all its networks."""
    _wipe(world)
    assert world.client.rows("/v1/networks/objects") == []
    return world


def _wipe(world: World) -> None:
    for kind, rest in (("endpoint", ""), ("vpc", "&cascade=1"), ("uplink", "")):
        for item in world.client.rows(f"/v1/networks/objects?kind={kind}"):
            world.client.delete(f"/v1/networks/objects/{kind}?name={item['name']}{rest}")


def typed(world: World, line: str) -> str:
    """Return the output of a command. Raises the exception that ends it."""
    done = CliRunner().invoke(cli, line.split(), env={"CALABASH_HOME": str(world.home)}, standalone_mode=False)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return str(done.stdout)


def refused(world: World, reason: Reason, line: str) -> str:
    with pytest.raises(CalabashError) as told:
        typed(world, line)
    assert told.value.reason is reason, told.value
    assert told.value.hint, "every refusal has a hint"
    assert "\n" not in told.value.message
    return told.value.message


def objects(world: World, kind: str = "") -> dict[str, Any]:
    found = world.client.rows("/v1/networks/objects" + (f"?kind={kind}" if kind else ""))
    return {f"{one['kind']} {one['name']}": one for one in found}


def specs(world: World) -> dict[str, Any]:
    return {name: one["spec"] for name, one in objects(world).items()}


def test_every_command_of_the_table_does_what_it_says_and_again_nothing(clean: World) -> None:
    for line in ISSUED.splitlines():
        typed(clean, line)
    before = objects(clean)
    assert before["port red/a/web1"]["spec"]["addresses"] == ["10.0.1.11"]
    assert before["port red/a/web1"]["spec"]["qos"] == "red/rate-1gbit"
    assert before["qos red/rate-1gbit"]["spec"]["egress_bits_per_s"] == 10**9
    assert before["qos red/slow"]["spec"] == {"egress_bits_per_s": 500_000, "ingress_bits_per_s": 10_000_000}
    assert (before["lb red/web"]["spec"]["layer"], before["lb red/plain"]["spec"]["layer"]) == ("l7", "l4")
    assert [b["port"] for b in before["lb red/plain"]["spec"]["backends"]] == ["red/a/web1", "red/a/web2"]
    assert before["nat red/ssh"]["spec"]["eip"] == "red/one"
    assert before["endpoint blue/models"]["spec"]["vip"].startswith("10.0.1.")
    assert before["peer red/green"]["spec"]["number"] == before["peer green/red"]["spec"]["number"]
    rules = before["sg red/default"]["spec"]["rules"]
    assert {"protocol": "tcp", "ports": [443, 443], "peer": "0.0.0.0/0"}.items() <= rules[-2].items()
    assert rules[-1]["peer_group"] == "red/db"
    for line in ISSUED.splitlines():
        if not line.startswith("net port create red/a/web1"):  # it has a rate by now
            typed(clean, line)
    assert objects(clean) == before
    assert "and differs" in refused(clean, Reason.CONFLICT, "net port create red/a/web1")
    typed(clean, "net sg rule remove red/default --allow tcp:443 --from 0.0.0.0/0")
    assert len(specs(clean)["sg red/default"]["rules"]) == len(rules) - 1
    assert "dnat" in typed(clean, "net nat list")
    assert "red/ssh" not in typed(clean, "net fip list")
    typed(clean, "net qos set red/a/web1 --rate none")
    assert specs(clean)["port red/a/web1"]["qos"] == ""
    typed(clean, "net subnet set red/a --no-dhcp")
    assert specs(clean)["subnet red/a"]["dhcp"] is False
    assert specs(clean)["subnet red/a"]["dns"] is True


def test_rate_of_a_port_that_is_not_named_stays_as_it_is(clean: World) -> None:
    for line in ISSUED.splitlines():
        typed(clean, line)
    typed(clean, "net qos set red/a/web1 --egress 2Gbit")
    policy = specs(clean)["port red/a/web1"]["qos"]
    assert specs(clean)[f"qos {policy}"] == {"egress_bits_per_s": 2 * 10**9, "ingress_bits_per_s": 10**9}


def test_time_between_checks_of_a_balancer_needs_a_unit(clean: World) -> None:
    for line in ISSUED.splitlines():
        typed(clean, line)
    typed(clean, "net lb set red/plain --interval 1500ms")
    assert specs(clean)["lb red/plain"]["check"]["interval_s"] == 1.5
    assert "has no unit" in refused(clean, Reason.BAD_REQUEST, "net lb set red/plain --interval 2")


def test_every_kind_is_listed_shown_and_deleted_in_every_format(clean: World) -> None:
    for line in ISSUED.splitlines():
        typed(clean, line)
    words = ["fip", "endpoint", "dns", "route", "line", "nat", "eip", "lb", "gateway", "peer", "uplink", "qos"]
    for word in [*words, "port", "sg", "subnet", "vpc"]:
        found = yaml.safe_load(typed(clean, f"net {word} list -o yaml"))["items"]
        assert found, word
        assert [one["name"] for one in found] == typed(clean, f"net {word} list -o name").split()
        table = typed(clean, f"net {word} list").splitlines()
        assert table[0].split()[:1] == ["NAME"]
        assert {"GEN", "STATE"} <= set(table[0].split())
        assert len(table) == len(found) + 1
        for one in found:
            shown = yaml.safe_load(typed(clean, f"net {word} show {one['name']} -o yaml"))
            assert {k: shown[k] for k in ("kind", "name", "spec")} == {k: one[k] for k in ("kind", "name", "spec")}
            assert "valid: yes" in typed(clean, f"net {word} show {one['name']}")
    for word in words:
        for name in typed(clean, f"net {word} list -o name").split():
            if name != "red/rate-1gbit":  # a port has it
                assert typed(clean, f"net {word} delete {name}").strip() == name
    for name in ("red", "blue", "green"):
        typed(clean, f"net vpc delete {name} --all")
    assert objects(clean) == {}


BAD = (
    ("net vpc create Red --cidr 10.0.0.0/16", Reason.BAD_REQUEST, "'Red' is not a valid name"),
    ("net vpc create pink --cidr 10.0.0.1/16", Reason.BAD_REQUEST, "'10.0.0.1/16' is not an IP range"),
    ("net vpc create pink --cidr 10.0.0.0/16,10.0.1.0/24", Reason.BAD_REQUEST, "overlap"),
    ("net vpc create pink --cidr 10.0.0.0/16 --tenant nobody-has-it", Reason.NOT_FOUND, "no tenant nobody-has-it"),
    ("net subnet create red/b --cidr 10.0.1.128/25", Reason.CONFLICT, "overlap"),
    ("net subnet create red/b --cidr 10.1.0.0/24", Reason.BAD_REQUEST, "10.1.0.0/24"),
    ("net subnet create nil/b --cidr 10.1.0.0/24", Reason.NOT_FOUND, "no vpc nil"),
    ("net port create red/a/web3 --ip 10.0.2.3", Reason.BAD_REQUEST, "10.0.2.3"),
    ("net port create red/a/web3 --ip 10.0.1.11", Reason.CONFLICT, "10.0.1.11"),
    ("net port create red/z/web3", Reason.NOT_FOUND, "red/z"),
    ("net port create red/web3", Reason.BAD_REQUEST, "2 parts, not 3"),
    ("net port create red/a/web1 --ip 10.0.1.12", Reason.CONFLICT, "cannot change from 10.0.1.11"),
    ("net lb create red/l --vip 10.0.1.50:80 --backends nobody:80", Reason.NOT_FOUND, "has no port 'nobody'"),
    ("net lb create red/l --vip 10.0.1.50 --backends web1:80", Reason.BAD_REQUEST, "--vip '10.0.1.50'"),
    ("net lb create red/l --vip 10.0.1.50:80 --backends web1", Reason.BAD_REQUEST, "has no port number"),
    (
        "net lb create red/l --vip 10.0.1.50:80 --backends web1:99999",
        Reason.BAD_REQUEST,
        "'99999' is not a port number",
    ),
    ("net lb create red/l --vip 10.0.1.50:80 --backends web1:80 --check ping", Reason.BAD_REQUEST, "--check 'ping'"),
    ("net lb create red/l --vip 10.7.1.50:80 --backends web1:80", Reason.NOT_FOUND, "10.7.1.50"),
    (
        "net lb create red/l --vip 10.0.1.50:443 --backends web1:80 --tls none",
        Reason.NOT_FOUND,
        "no certificate red/none",
    ),
    ("net gateway create red/out --snat", Reason.NO_CAPACITY, "uplinks"),
    ("net gateway create red/out --address one", Reason.BAD_REQUEST, "'one' is not an address"),
    ("net eip create red/one", Reason.NOT_FOUND, "no gateway"),
    ("net nat dnat red/ssh --eip one --outside 22 --forward-to web1:22", Reason.NOT_FOUND, "no gateway"),
    ("net peer create red/nil", Reason.NOT_FOUND, "VPC nil does not exist"),
    ("net peer create red/blue", Reason.CONFLICT, "overlaps"),
    ("net endpoint create blue/models --balancer red/none", Reason.NOT_FOUND, "red/none"),
    ("net sg rule add red/default --allow tcp:0 --from 0.0.0.0/0", Reason.BAD_REQUEST, "'0' is not a port number"),
    ("net sg rule add red/default --allow smtp --from 0.0.0.0/0", Reason.BAD_REQUEST, "--allow 'smtp'"),
    ("net sg rule add red/default --allow tcp:22", Reason.BAD_REQUEST, "one direction"),
    ("net sg rule add red/default --allow tcp:22 --from nobody", Reason.NOT_FOUND, "red/nobody"),
    ("net sg rule add red/default --allow tcp:22 --from blue/default", Reason.BAD_REQUEST, "not an object of VPC red"),
    ("net sg rule remove red/default --allow tcp:22 --from 0.0.0.0/0", Reason.NOT_FOUND, "no such rule"),
    ("net sg delete red/default", Reason.CONFLICT, "red/default"),
    ("net qos set red/a/web1 --rate fast", Reason.BAD_REQUEST, "'fast'"),
    ("net qos set red/a/web1", Reason.BAD_REQUEST, "no change was given"),
    ("net subnet set red/a", Reason.BAD_REQUEST, "no change was given"),
    ("net subnet delete red/a", Reason.CONFLICT, "is used by port red/a/web1"),
    ("net vpc delete red", Reason.CONFLICT, "is used by subnet red/a"),
    ("net port delete red/a/nobody", Reason.NOT_FOUND, "no port red/a/nobody"),
    ("net port show red/a/nobody", Reason.NOT_FOUND, "no port red/a/nobody"),
    ("net fip show red/nobody", Reason.NOT_FOUND, "no nat red/nobody"),
    ("net apply -f /nonexistent.yaml", Reason.NOT_FOUND, "/nonexistent.yaml cannot be read"),
    ("net certificate put red/c --cert /dev/null --key /dev/null", Reason.BAD_REQUEST, ""),
)


def test_bad_input_is_one_line_with_a_reason_and_a_hint_and_leaves_nothing_half_done(clean: World) -> None:
    for line in ISSUED.splitlines()[:6]:
        if not line.startswith("net vpc create green"):
            typed(clean, line)
    before = objects(clean)
    said = {line: refused(clean, reason, line) for line, reason, _ in BAD}
    assert [f"{line}: {said[line]}" for line, _, part in BAD if part not in said[line]] == []
    assert objects(clean) == before


def test_a_subnet_without_free_addresses_says_so(clean: World) -> None:
    typed(clean, "net vpc create tiny --cidr 10.0.0.0/24")
    typed(clean, "net subnet create tiny/a --cidr 10.0.0.0/29")
    for number in range(5):
        typed(clean, f"net port create tiny/a/p{number}")
    assert "10.0.0.0/29" in refused(clean, Reason.NO_CAPACITY, "net port create tiny/a/p5")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_applied_and_differs_in_nothing_then(clean: World, example: Path) -> None:
    assert "+ vpc" in typed(clean, f"net diff -f {example}")
    assert objects(clean) == {}
    assert "created" in typed(clean, f"net apply -f {example}")
    before = objects(clean)
    assert typed(clean, f"net diff -f {example} --prune") == ""
    assert "unchanged" in typed(clean, f"net apply -f {example} --prune")
    assert objects(clean) == before


def test_what_list_prints_brings_networks_back_as_they_were(clean: World, tmp_path: Path) -> None:
    for example in EXAMPLES:
        typed(clean, f"net apply -f {example}")
    before = specs(clean)
    documents = [{k: one[k] for k in ("kind", "name", "spec")} for one in objects(clean).values()]
    kept = tmp_path / "kept.yaml"
    kept.write_text(yaml.safe_dump_all(documents))
    _wipe(clean)
    typed(clean, f"net apply -f {kept}")
    assert specs(clean) == before


def test_a_file_that_changes_and_prunes_is_shown_before_and_done_as_shown(clean: World, tmp_path: Path) -> None:
    web = next(path for path in EXAMPLES if path.stem == "web")
    typed(clean, f"net apply -f {web}")
    changed = tmp_path / "changed.yaml"
    documents = [one for one in yaml.safe_load_all(web.read_text()) if one["name"] not in {"shop/back/db", "shop/db"}]
    documents = [one for one in documents if one["name"] != "shop/web" or one["kind"] != "sg"]
    for one in documents:
        if one["name"] == "shop/front":
            one["spec"]["dhcp"] = False
        one["spec"].pop("security_groups", None)
    changed.write_text(yaml.safe_dump_all(documents))
    shown = typed(clean, f"net diff --prune -f {changed}")
    assert "~ subnet shop/front\n    - dhcp: true\n    + dhcp: false\n" in shown
    assert "- port shop/back/db\n" in shown
    done = typed(clean, f"net apply --prune -f {changed}")
    assert "port shop/back/db removed\n" in done
    assert "sg shop/web removed\n" in done
    assert typed(clean, f"net diff --prune -f {changed}") == ""
    bad = tmp_path / "bad.yaml"
    bad.write_text("kind: subnet\nname: shop/more\nspec: {cidrs: [10.0.1.0/25]}\n")
    before = objects(clean)
    assert refused(clean, Reason.CONFLICT, f"net apply -f {changed} -f {bad}").startswith(f"{bad}: document 1: subnet ")
    assert objects(clean) == before


def test_a_pool_that_is_killed_while_objects_come_has_all_of_each_or_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "home", "1xT4")
    answered: list[str] = []
    stop = threading.Event()

    def come() -> None:
        client = PathClient(world.home)
        for number in range(10_000):
            if stop.is_set():
                return
            documents = [
                {"kind": "vpc", "name": f"v{number}", "spec": {"cidrs": ["10.0.0.0/16"]}},
                {"kind": "subnet", "name": f"v{number}/a", "spec": {"cidrs": ["10.0.1.0/24"]}},
                {"kind": "port", "name": f"v{number}/a/p", "spec": {}},
            ]
            try:
                client.post("/v1/networks/apply", {"documents": documents})
            except CalabashError:
                stop.wait(0.02)  # the pool is down
                continue
            answered.append(f"v{number}")

    try:
        world.up()
        writer = threading.Thread(target=come)
        writer.start()
        for _ in range(2):
            had = len(answered)
            until(lambda had=had: len(answered) >= had + 5, what="objects")  # type: ignore[misc]
            world.kill()
            world.up()
        stop.set()
        writer.join()
        found = objects(world)
        vpcs = {name.split()[1] for name in found if name.startswith("vpc ")}
        assert set(answered) <= vpcs, "an answer was given for what is not there"
        assert found.keys() == {
            f"{kind} {vpc}{rest}"
            for vpc in vpcs
            for kind, rest in (("vpc", ""), ("subnet", "/a"), ("port", "/a/p"), ("sg", "/default"))
        }
        numbers = [one["spec"]["number"] for name, one in found.items() if name.startswith("vpc ")]
        assert len(numbers) == len(set(numbers))
    finally:
        stop.set()
        world.close()


def test_who_follows_is_told_of_a_change_at_once_and_of_nothing_else(clean: World) -> None:
    client = PathClient(clean.home)
    typed(clean, "net vpc create red --cidr 10.0.0.0/16")
    whole = client.get("/v1/networks/snapshot")
    known = whole["revision"]
    assert whole["whole"]
    assert {(one["kind"], one["name"]) for one in whole["objects"]} == {("vpc", "red"), ("sg", "red/default")}
    same = client.get(f"/v1/networks/snapshot?after={known}")
    assert (same["whole"], same["objects"], same["revision"]) == (False, [], known)
    told: list[Any] = []
    waiting = threading.Thread(
        target=lambda: told.append(client.get(f"/v1/networks/snapshot?after={known}&wait=30&changes=1", timeout_s=60))
    )
    waiting.start()
    typed(clean, "net subnet create red/a --cidr 10.0.1.0/24")
    waiting.join()
    assert [one["name"] for one in told[0]["objects"]] == ["red/a"]
    assert told[0]["revision"] == known + 1
    condition = {"kind": "realized", "holds": True, "reason": "carried_out"}
    status: dict[str, Any] = {"observed_generation": 1, "conditions": [condition]}
    report = {"kind": "subnet", "name": "red/a", "status": status}
    assert client.put("/v1/networks/status", {"items": [report]}) == {"known": 1}
    assert typed(clean, "net subnet list").splitlines()[1].split()[-1] == "realized"
    failed = {"kind": "ready", "holds": False, "reason": "host_lost", "message": "h1 is silent"}
    status["conditions"].append(failed)
    client.put("/v1/networks/status", {"items": [report]})
    assert typed(clean, "net subnet list").splitlines()[1].endswith("no: host_lost")
    assert "ready: no (host_lost: h1 is silent)" in typed(clean, "net subnet show red/a")
    assert client.get(f"/v1/networks/snapshot?after={known + 1}")["objects"] == [], "a report is no change"


def test_a_certificate_is_shown_without_its_key_which_a_process_of_the_machine_alone_gets(
    clean: World, tmp_path: Path
) -> None:
    server_context(tmp_path / "one")
    server_context(tmp_path / "two")
    server_context(tmp_path / "old", good_days=-1)
    one, two, old = (tmp_path / name for name in ("one", "two", "old"))
    typed(clean, "net vpc create red --cidr 10.0.0.0/16")
    typed(clean, "net subnet create red/a --cidr 10.0.1.0/24")
    typed(clean, "net port create red/a/web1")
    put = "net certificate put red/tls --cert {}/tls.crt --key {}/tls.key"
    assert "not that of the first" in refused(clean, Reason.BAD_REQUEST, put.format(one, two))
    assert "has expired" in refused(clean, Reason.BAD_REQUEST, put.format(old, old))
    swapped = f"net certificate put red/tls --cert {one}/tls.key --key {one}/tls.crt"
    assert "PRIVATE" not in refused(clean, Reason.BAD_REQUEST, swapped)
    file = tmp_path / "balancer.yaml"
    spec = (
        "{vip: 10.0.1.100, vip_number: 443, backends: [{port: red/a/web1, number: 8080}], layer: l7, certificate: tls}"
    )
    file.write_text(f"kind: lb\nname: red/web\nspec: {spec}\n")
    for command in ("apply", "diff"):
        told = refused(clean, Reason.NOT_FOUND, f"net {command} -f {file}")
        assert f"{file}: document 1: lb red/web: there is no certificate red/tls in its VPC" in told
    typed(clean, put.format(one, one))
    assert "lb red/web" in typed(clean, f"net apply -f {file} --dry-run")
    typed(clean, "net lb create red/web --vip 10.0.1.100:443 --backends web1:8080 --tls red/tls")
    assert specs(clean)["lb red/web"]["certificate"] == "tls"
    secret = (one / "tls.key").read_text()
    listed = typed(clean, "net certificate list -o yaml")
    assert "PRIVATE" not in listed
    assert secret.splitlines()[1] not in listed
    assert clean.client.get("/v1/networks/certificates/key?name=red/tls")["key"] == secret
    handed = PoolNetworks(PathClient(clean.home)).secret
    assert handed("red/tls") == (one / "tls.crt").read_bytes() + secret.encode()
    assert handed("red/none") is None
    assert "is used by lb red/web" in refused(clean, Reason.CONFLICT, "net certificate delete red/tls")
    logs = [path.read_bytes() for path in clean.home.glob("*.log")]
    assert logs
    assert not any(secret.splitlines()[1].encode() in log or b"PRIVATE" in log for log in logs)
    typed(clean, "net vpc delete red --all")
    typed(clean, "net vpc create red --cidr 10.0.0.0/16")
    assert typed(clean, "net certificate list -o name") == "", "who has the name next has not its keys"


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with network(tmp_path_factory.mktemp("tenants") / "home", "1xT4") as made:
        for tenant in ("vision", "speech"):
            made.world.client.put(f"/v1/tenants/{tenant}", {})
        made.person("ann", Role.MEMBER, "vision")
        made.person("guest", Role.VIEWER, "vision")
        made.person("eve", Role.TENANT_ADMIN, "speech")
        made.person("chief", Role.ADMIN)
        made.person("operator", Role.OPERATOR)
        yield made


def _order(net: Network, who: str, kind: str, name: str, **spec: Any) -> int:
    told = net.ask("PUT", "/v1/networks/objects", {"kind": kind, "name": name, "spec": spec}, token=net.tokens[who])
    return told.status


def test_tenants_have_the_same_addresses_and_learn_nothing_of_each_other(net: Network) -> None:
    for who, vpc in (("ann", "red"), ("eve", "blue")):
        assert _order(net, who, "vpc", vpc, cidrs=["10.0.0.0/16"]) == 200
        assert _order(net, who, "subnet", f"{vpc}/a", cidrs=["10.0.1.0/24"]) == 200
        assert _order(net, who, "port", f"{vpc}/a/web1", addresses=["10.0.1.11"]) == 200
    serves = {"vip": "10.0.1.100", "vip_number": 80, "backends": [{"port": "blue/a/web1", "number": 80}]}
    assert _order(net, "eve", "lb", "blue/web", **serves) == 200
    seen = net.ask("GET", "/v1/networks/objects", token=net.tokens["eve"]).content.decode()
    assert "blue/a/web1" in seen
    assert "red/" not in seen
    assert _order(net, "eve", "vpc", "red", cidrs=["10.0.0.0/16"]) == 409
    for kind, name, spec in (
        ("port", "red/a/mine", {}),
        ("sg", "red/default", {"rules": []}),
        ("peer", "red/blue", {}),
        ("lb", "red/web", {"vip": "10.0.1.100", "vip_number": 80, "backends": [{"port": "red/a/web1", "number": 80}]}),
    ):
        assert _order(net, "eve", kind, name, **spec) == 404, kind
        assert _order(net, "eve", kind, name.replace("red", "nil"), **spec) == 404, kind
    told = [
        net.ask(
            "PUT",
            "/v1/networks/objects",
            {"kind": "endpoint", "name": "red/theirs", "spec": {"source": source}},
            token=net.tokens["ann"],
        )
        for source in ("blue/web", "blue/nil", "nil/web")
    ]
    assert {one.status for one in told} == {404}, "what is not offered is not there"
    assert (
        len(
            {
                one.content.replace(b"blue/nil", b"X").replace(b"blue/web", b"X").replace(b"nil/web", b"X")
                for one in told
            }
        )
        == 1
    )
    assert _order(net, "guest", "port", "red/a/web9") == 403
    assert _order(net, "ann", "uplink", "up", cidr="198.51.100.0/24", gateway="198.51.100.1") == 403
    assert _order(net, "operator", "port", "red/a/web9") == 403
    for who in ("ann", "guest", "eve", "operator"):
        assert net.ask("GET", "/v1/networks/snapshot", token=net.tokens[who]).status == 403
    assert net.ask("GET", "/v1/networks/snapshot", token=net.tokens["chief"]).status == 200
    assert net.ask("GET", "/v1/networks/certificates/key?name=red/tls", token=net.tokens["chief"]).status == 403


def test_a_tenant_with_networks_is_not_deleted_and_the_log_says_what_was_changed(net: Network) -> None:
    net.world.client.put("/v1/tenants/short", {})
    net.person("sam", Role.TENANT_ADMIN, "short")
    assert _order(net, "sam", "vpc", "brief", cidrs=["10.0.0.0/16"]) == 200
    with pytest.raises(CalabashError, match="tenant short has networks, VPC brief among them"):
        net.world.client.delete("/v1/tenants/short")
    lines = net.ask("GET", "/v1/audit?after=0", token=net.tokens["sam"]).json()["items"]
    assert ("short", "PUT", "/v1/networks/objects vpc brief") in {
        (a["tenant"], a["action"], a["target"]) for a in lines
    }
    told = net.ask("DELETE", "/v1/networks/objects/vpc?name=brief&cascade=1", token=net.tokens["sam"])
    assert told.status == 200
    net.world.client.delete("/v1/tenants/short")


def test_a_body_of_a_million_bytes_is_too_large_and_a_file_of_many_objects_is_not(net: Network) -> None:
    documents = [{"kind": "vpc", "name": f"many{n}", "spec": {"cidrs": ["10.0.0.0/16"]}} for n in range(1500)]
    told = net.ask("POST", "/v1/networks/apply", {"documents": documents, "dry_run": True}, token=net.tokens["chief"])
    assert told.status == 200
    bounded = net.ask("POST", "/v1/networks/apply", {"documents": documents, "dry_run": True}, token=net.tokens["eve"])
    assert (bounded.status, bounded.json()["reason"]) == (429, "user_limit")
    huge = net.ask("POST", "/v1/networks/apply", b" " * (1 << 20) + b"{}", token=net.tokens["chief"])
    assert huge.status == 413
    assert net.ask("PUT", "/v1/networks/objects", b" " * (1 << 17) + b"{}", token=net.tokens["chief"]).status == 413
