"""``calabash net vpc``, ``subnet``, ``port`` and the other kinds of network objects: commands made from the tables of kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from calabash.adapters.pool.client import ApiClient
from calabash.api import endpoints
from calabash.cli import output
from calabash.cli.home import client
from calabash.cli.net import kinds as net_kinds
from calabash.cli.net import parsing as net_parsing
from calabash.cli.net import route_kinds
from calabash.cli.net.kinds import NAME, STATE, Given, NetKind, Spec
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import vpc_of

TRIES = 5  # attempts at a change that conflicts with concurrent ones
Change = Callable[[Spec], Spec]


def read(pool: ApiClient, kind: str, name: str) -> Any:
    """Return the object."""
    return pool.send(endpoints.SHOW_NETWORK_OBJECT, kind, query={"name": name})


def listing(pool: ApiClient, kind: str = "", vpc: str = "") -> list[Any]:
    """Return the visible objects, optionally of one kind and one VPC."""
    query = {key: value for key, value in (("kind", kind), ("vpc", vpc)) if value}
    return pool.items(endpoints.LIST_NETWORK_OBJECTS, query=query)


def ports_of(pool: ApiClient) -> net_parsing.Ports:
    """Return the function that lists the ports of a VPC, to resolve short names."""
    return lambda vpc: [row["name"] for row in listing(pool, "port", vpc)]


def put(pool: ApiClient, kind: str, name: str, spec: Spec, **order: Any) -> Any:
    """Create or replace an object. ``order`` has further fields of the request, such as ``generation``."""
    return pool.send(endpoints.PUT_NETWORK_OBJECT, body={"kind": kind, "name": name, "spec": spec, **order})


def change(pool: ApiClient, kind: str, name: str, changed: Change) -> Any:
    """Change an existing object. If another client changes it at the same time, read it again and retry.

    Args:
        changed: returns the new spec for the present spec.
    """
    row = read(pool, kind, name)
    for left in reversed(range(TRIES)):
        before = row["generation"]
        try:
            return put(pool, kind, name, changed(dict(row["spec"])), generation=before)
        except CalabashError as error:
            if not left or error.reason is not Reason.CONFLICT:
                raise
            row = read(pool, kind, name)
            if row["generation"] == before:  # the conflict is with another object
                raise
    raise AssertionError


def spec_of(kind: NetKind, name: str, given: Given, known: Spec, pool: ApiClient) -> Spec:
    """Return the spec of an object: the present fields (``known``), changed as the options in ``given`` say."""
    ports = ports_of(pool)
    said = {option: given[option.parameter] for option in kind.options if given[option.parameter] not in (None, ())}
    spec = {**known, **kind.only}
    for option, value in said.items():
        if option.field:
            spec[option.field] = option.value(name, value, ports)
    return kind.spec(name, spec, given, ports) if kind.spec else spec


def print_object(row: Any, fmt: str) -> None:
    """Print the name of the object, or the whole object in JSON or YAML."""
    if fmt in ("json", "yaml"):
        click.echo(output.document("NetworkObject", row, fmt))
    else:
        click.echo(row["name"])


def group_of(kind: NetKind) -> click.Group:
    """Return the group of all commands of a kind."""
    made = click.Group(kind.word, help=kind.help)
    if kind.create:
        made.add_command(_create(kind))
        if any(not option.fixed for option in kind.options):
            made.add_command(_set(kind))
    made.add_command(_list(kind))
    made.add_command(_show(kind))
    made.add_command(_delete(kind))
    return made


def creation(kind: NetKind, word: str, help_text: str) -> click.Command:
    """Return the command that creates an object of the kind."""

    def create(name: str, fmt: str, **given: Any) -> None:
        pool = client()
        print_object(put(pool, kind.kind, name, spec_of(kind, name, given, {}, pool), new=True), fmt)

    command: Any = create
    for option in reversed(kind.options):
        command = option.decorated(command, new=True)
    command = click.argument("name", metavar=kind.path)(output.option(command))
    return click.command(word, help=help_text)(command)


def _create(kind: NetKind) -> click.Command:
    return creation(kind, "create", f"Create {kind.noun}.")


def _set(kind: NetKind) -> click.Command:
    def set_fields(name: str, fmt: str, **given: Any) -> None:
        if all(value in (None, ()) for value in given.values()):
            raise CalabashError("no change was given", hint=f"see `calabash net {kind.word} set --help`")
        pool = client()
        print_object(change(pool, kind.kind, name, lambda known: _checked(kind, known, name, given, pool)), fmt)

    command: Any = set_fields
    for option in reversed([option for option in kind.options if not option.fixed]):
        command = option.decorated(command, new=False)
    command = click.argument("name", metavar=kind.path)(output.option(command))
    return click.command("set", help=f"Change {kind.noun}. Settings without an option keep their values.")(command)


def _checked(kind: NetKind, known: Spec, name: str, given: Given, pool: ApiClient) -> Spec:
    _check_part(kind, {"name": name, "spec": known})
    every = {option.parameter: None for option in kind.options}
    return spec_of(kind, name, every | given, known, pool)


def _list(kind: NetKind) -> click.Command:
    @click.command("list", help=f"List every {kind.word} that you may see.")
    @click.option("--vpc", default="", metavar="NAME", help="Only objects of this VPC.", hidden=kind.word == "uplink")
    @output.option
    def list_objects(vpc: str, fmt: str) -> None:
        rows = [row for row in listing(client(), kind.kind, vpc) if _is_part(kind, row)]
        output.emit("NetworkObjectList", rows, (NAME, *kind.columns, *STATE), fmt, name="name")

    return list_objects


def _show(kind: NetKind) -> click.Command:
    @click.command("show", help=f"Show {kind.noun} and its conditions.")
    @click.argument("name", metavar=kind.path)
    @output.option
    def show(name: str, fmt: str) -> None:
        row = read(client(), kind.kind, name)
        _check_part(kind, row)
        if fmt in ("json", "yaml"):
            click.echo(output.document("NetworkObject", row, fmt))
            return
        output.emit(
            "NetworkObjectList", [row], (NAME, *kind.columns, *STATE), "wide" if fmt == "table" else fmt, name="name"
        )
        for one in row["status"]["conditions"] if fmt in ("table", "wide") else ():
            holds = {True: "yes", False: "no", None: "not known"}[one["holds"]]
            why = ": ".join(filter(None, (one["reason"], one["message"])))
            click.echo(f"{one['kind']}: {holds}" + (f" ({output.printable(why)})" if why else ""))

    return show


def _delete(kind: NetKind) -> click.Command:
    cascades = kind.kind == "vpc"

    @click.command("delete", help=f"Delete {kind.noun}. Fails while another object uses it.")
    @click.argument("name", metavar=kind.path)
    @click.option("--all", "cascade", is_flag=True, help="Delete the VPC with all its objects.", hidden=not cascades)
    def delete(name: str, *, cascade: bool) -> None:
        pool = client()
        if kind.only:
            _check_part(kind, read(pool, kind.kind, name))
        query = {"name": name, **({"cascade": 1} if cascade else {})}
        pool.send(endpoints.DELETE_NETWORK_OBJECT, kind.kind, query=query)
        click.echo(name)

    return delete


def _is_part(kind: NetKind, row: Any) -> bool:
    return all(row["spec"].get(field) == value for field, value in kind.only.items())


def _check_part(kind: NetKind, row: Any) -> None:
    if not _is_part(kind, row):
        raise CalabashError(
            f"{row['name']} is not a {kind.word}", reason=Reason.NOT_FOUND, hint=f"see `calabash net {kind.word} list`"
        )


vpc = group_of(net_kinds.VPC)
subnet = group_of(net_kinds.SUBNET)
port = group_of(net_kinds.PORT)
sg = group_of(net_kinds.GROUP)
lb = group_of(net_kinds.BALANCER)
gateway = group_of(route_kinds.GATEWAY)
eip = group_of(route_kinds.EIP)
nat = group_of(route_kinds.NAT)
nat.add_command(creation(route_kinds.DNAT, "dnat", "Forward a port of an outside address to a port of the VPC."))
fip = group_of(route_kinds.FIP)
peer = group_of(route_kinds.PEER)
line = group_of(route_kinds.LINE)
endpoint = group_of(route_kinds.ENDPOINT)
route = group_of(route_kinds.ROUTE)
dns = group_of(route_kinds.DNS)
qos = group_of(route_kinds.QOS)
uplink = group_of(route_kinds.UPLINK)


@sg.group("rule")
def rule() -> None:
    """Add rules to security groups and remove them."""


def _of_rules(command: Any) -> Any:
    for option in (
        click.option("--to", "receiver", metavar="PEER", help="Allow packets to this range or group of the VPC."),
        click.option("--from", "sender", metavar="PEER", help="Allow packets from this range or group of the VPC."),
        click.option(
            "--allow", required=True, metavar="PROTOCOL[:PORTS]", help="Such as tcp:443, udp:5000-5010, icmp or any."
        ),
        click.argument("name", metavar="VPC/GROUP"),
    ):
        command = option(command)
    return command


def _rule(name: str, allow: str, sender: str | None, receiver: str | None) -> Spec:
    if (sender is None) == (receiver is None):
        raise CalabashError("a rule needs one direction", hint="give either --from PEER or --to PEER")
    peer, direction = (sender, "ingress") if sender is not None else (receiver, "egress")
    return net_parsing.rule(allow, peer or "", direction, vpc_of(name))


@rule.command("add")
@_of_rules
def add_rule(name: str, allow: str, sender: str | None, receiver: str | None) -> None:
    """Allow traffic; replies to it are allowed as well."""
    made = _rule(name, allow, sender, receiver)

    def added(spec: Spec) -> Spec:
        return spec if made in spec["rules"] else {**spec, "rules": [*spec["rules"], made]}

    click.echo(change(client(), "sg", name, added)["name"])


@rule.command("remove")
@_of_rules
def remove_rule(name: str, allow: str, sender: str | None, receiver: str | None) -> None:
    """Remove a rule."""
    gone = _rule(name, allow, sender, receiver)

    def removed(spec: Spec) -> Spec:
        if gone not in spec["rules"]:
            raise CalabashError(
                f"security group {name} has no such rule",
                reason=Reason.NOT_FOUND,
                hint=f"see `calabash net sg show {name} -o yaml`",
            )
        return {**spec, "rules": [one for one in spec["rules"] if one != gone]}

    click.echo(change(client(), "sg", name, removed)["name"])


_set_policy: Any = qos.commands["set"].callback


@click.command("set")
@click.argument("name", metavar="NAME")
@click.option("--rate", metavar="RATE", help="Limit of both directions, such as 1Gbit, or none.")
@click.option("--egress", metavar="RATE", help="Limit of packets that a port sends.")
@click.option("--ingress", metavar="RATE", help="Limit of packets that a port receives.")
@output.option
def set_rate(name: str, rate: str | None, egress: str | None, ingress: str | None, fmt: str) -> None:
    """Limit the rate of a port (VPC/SUBNET/PORT), or of all ports with a policy (VPC/POLICY)."""
    if name.count("/") != 2:
        _set_policy(name=name, rate=rate, egress=egress, ingress=ingress, fmt=fmt)
        return
    pool = client()
    said = {"rate": rate, "egress": egress, "ingress": ingress}
    if all(value is None for value in said.values()):
        raise CalabashError("no change was given", hint="give --rate 1Gbit, or --rate none")
    before = read(pool, "port", name)["spec"].get("qos", "")
    known = read(pool, "qos", before)["spec"] if before else {}
    spec = net_kinds.rates_of(name, dict(known), said, ports_of(pool))
    rates = {f"{way}_bits_per_s": spec.get(f"{way}_bits_per_s", 0) for way in ("egress", "ingress")}
    policy = ""
    if any(rates.values()):
        policy = f"{vpc_of(name)}/{net_parsing.policy_name(*rates.values())}"
        put(pool, "qos", policy, rates)
    print_object(change(pool, "port", name, lambda known: {**known, "qos": policy}), fmt)


qos.add_command(set_rate)
