"""``calabash net render``: print the networks as objects of another system."""

from __future__ import annotations

import sys
from typing import Any

import click

from calabash.api import endpoints
from calabash.cli.home import client
from calabash.cli.net.files import read_file
from calabash.model.errors import CalabashError

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from calabash.net.objects.collection import NetworkObjects

BACKENDS = ("kube-ovn",)


@click.command()
@click.option("--backend", type=click.Choice(BACKENDS), required=True, help="System whose objects are printed.")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    help="YAML file with the objects; -: standard input; repeat for several. Default: the objects of the pool.",
)
@click.option(
    "--interface",
    "interfaces",
    multiple=True,
    metavar="PHYSICAL=CARD",
    help="Network interface of the hosts for a `physical` of an uplink or line; repeat for several. Default: same name.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 if anything is omitted.")
def render(backend: str, files: tuple[str, ...], interfaces: tuple[str, ...], *, strict: bool) -> None:
    """Print the networks as custom resources, for `kubectl apply -f -`; unsupported features are reported on standard error.

    Numbers and addresses that a file omits are allocated as in an empty pool. Ports are pods in the namespace of their VPC;
    the ConfigMaps named calabash-ports in the namespace contain the annotations of these pods.
    """
    from calabash.net.kubeovn.rendering import render_kube_ovn  # noqa: PLC0415

    assert backend in BACKENDS
    cards = dict(_card(text) for text in interfaces)
    found = render_kube_ovn(_of_files(files) if files else _of_the_pool(), interfaces=cards)
    click.echo(_text([one.document() for one in found.resources]), nl=False)
    for refused in found.unsupported:
        what = "is omitted" if refused.whole else "is incomplete"
        click.echo(f"{refused.kind} {refused.name} {what}: {refused.reason}", err=True)
    if strict and found.unsupported:
        sys.exit(1)


def _card(text: str) -> tuple[str, str]:
    physical, found, card = text.partition("=")
    if not (physical and found and card):
        raise CalabashError(
            f"--interface {text[:80]!r} is not PHYSICAL=CARD", hint="write --interface ext=eth1, for example"
        )
    return physical, card


def _of_files(files: tuple[str, ...]) -> NetworkObjects:
    from calabash.net.objects.manifest_parser import BYTES_MAX, read_manifests  # noqa: PLC0415 - YAML is loaded where it is read
    from calabash.net.objects.specs import decode, parse_kind  # noqa: PLC0415
    from calabash.net.store.apply_plan import DesiredObject, apply_objects  # noqa: PLC0415
    from calabash.net.store.networks import Networks  # noqa: PLC0415

    wanted = []
    for file in files:
        for one in read_manifests(read_file(file, BYTES_MAX), "" if file == "-" else file):
            try:
                item = decode(parse_kind(one.kind), one.name, one.spec)
            except CalabashError as error:
                raise CalabashError(f"{one.place}: {error.message}", reason=error.reason, hint=error.hint) from None
            wanted.append(DesiredObject(place=one.place, item=item))
    return apply_objects(Networks(), wanted, ())


def _of_the_pool() -> NetworkObjects:
    from calabash.net.objects.collection import NetworkObjects  # noqa: PLC0415
    from calabash.net.objects.specs import decode, parse_kind  # noqa: PLC0415

    rows: list[dict[str, Any]] = client().items(endpoints.LIST_NETWORK_OBJECTS)
    return NetworkObjects.from_objects(
        (decode(parse_kind(row["kind"]), row["name"], row["spec"]) for row in rows), revision=0
    )


def _text(documents: list[dict[str, Any]]) -> str:
    import yaml  # noqa: PLC0415

    return yaml.safe_dump_all(documents, sort_keys=False, width=120, explicit_start=True) if documents else ""
