"""Shared options and requests of the commands ``create`` and ``set`` of queues, tenants, projects, users and notifications.

``create`` makes an object that does not exist; ``set`` changes the named fields of one that exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from calabash.api.endpoints import Endpoint
from calabash.cli import output
from calabash.cli.failure import print_on_stderr
from calabash.cli.home import client
from calabash.model.errors import CalabashError

NO_LIMIT = "none"
_LISTS = ("users", "groups")


class LimitType(click.ParamType[Any]):
    """Number of devices, or ``none``."""

    name = "devices"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return value if value == NO_LIMIT else click.FloatRange(0).convert(value, param, ctx)


def names(text: str) -> list[str]:
    """Return the words between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def amounts(command: Any) -> Any:
    """Add the options for the amounts of a queue, a tenant or a project."""
    for option in (
        click.option("--weight", type=click.FloatRange(0), help="Share of unclaimed devices."),
        click.option("--limit", type=LimitType(), metavar="DEVICES", help="Most devices; `none`: no limit."),
        click.option(
            "--guarantee",
            type=click.FloatRange(0),
            help="Guaranteed devices, reclaimed from borrowers when needed.",
        ),
    ):
        command = option(command)
    return command


def members(users: str, groups: str, *, changing: bool) -> Callable[[Any], Any]:
    """Add the options for lists of users and groups; a command that changes a list can also add and remove names.

    Args:
        users: meaning of the users, for help.
        groups: meaning of the groups, for help.
        changing: add the options that add and remove single names.
    """
    instead = ", instead of those before" if changing else ""

    def decorated(command: Any) -> Any:
        options = [
            click.option("--users", metavar="NAMES", help=f"{users}, separated by commas{instead}."),
            click.option("--groups", metavar="NAMES", help=f"{groups}, separated by commas{instead}."),
        ]
        if changing:
            options += [
                click.option(f"--{act}-{what}", f"{act}_{what}s", multiple=True, metavar="NAME", help=text)
                for what in ("user", "group")
                for act, text in (
                    ("add", f"Add this {what} to the list; repeat for several."),
                    ("remove", f"Remove this {what} from the list; repeat for several."),
                )
            ]
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def said(options: dict[str, Any], *, lists: Sequence[str] = ()) -> dict[str, Any]:
    """Return the request body for the options that were given.

    Args:
        options: values of the options; None and () mean that an option was not given.
        lists: further options whose text is a list of words between commas.
    """
    found: dict[str, Any] = {}
    for key, value in options.items():
        if value is None or value == ():
            continue
        if isinstance(value, tuple):
            found[key] = [name for text in value for name in names(text)]
        elif key in (*_LISTS, *lists):
            found[key] = names(value)
        else:
            found[key] = value
    if found.get("limit") == NO_LIMIT:
        found["limit"] = None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The object that a command creates or changes.

    Args:
        kind: kind of the document that ``-o json`` prints.
        put: endpoint that creates or changes the object.
        show: endpoint that shows the object; if its path has no variable segments, it shows the list with the object.
        values: values of the variable segments of these endpoints.
        name: name of the object, which is printed.
        fmt: the output format.
    """

    kind: str
    put: Endpoint
    show: Endpoint
    values: tuple[str, ...]
    name: str
    fmt: str


def create(target: Target, body: dict[str, Any]) -> None:
    """Create an object and print it. Fails if the object exists."""
    _put(target, body | {"new": True})


def change(target: Target, body: dict[str, Any], *, command: str) -> None:
    """Change those settings of an existing object that ``body`` contains, and print the object.

    Raises BAD_REQUEST if ``body`` is empty.
    """
    if not body:
        raise CalabashError("no change was given", hint=f"see `calabash {command} set --help`")
    _put(target, body | {"new": False})


def _put(target: Target, body: dict[str, Any]) -> None:
    """Create or replace the object with ``body``; print its name or its document, and the pool's warnings."""
    pool = client()
    reply = pool.send(target.put, *target.values, body=body)
    for text in reply.get("warnings", ()):
        print_on_stderr(f"warning: {text}")
    if target.fmt not in ("json", "yaml"):
        click.echo(target.name)
        return
    if target.show.variables:
        found = pool.send(target.show, *target.values)
    else:
        (found,) = [row for row in pool.items(target.show) if row["name"] == target.name]
    click.echo(output.document(target.kind, found, target.fmt))
