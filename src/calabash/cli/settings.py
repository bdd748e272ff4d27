"""Options and requests that the commands ``create`` and ``set`` of queues, tenants, projects, users and notifications share.

``create`` makes an object that does not exist; ``set`` changes one that exists, and of it only what the command names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from calabash.cli import output
from calabash.cli.failure import say
from calabash.cli.home import client
from calabash.model.errors import CalabashError

NO_LIMIT = "none"
_LISTS = ("users", "groups")


class LimitType(click.ParamType[Any]):
    """A number of devices, or ``none``."""

    name = "devices"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return value if value == NO_LIMIT else click.FloatRange(0).convert(value, param, ctx)


def names(text: str) -> list[str]:
    """Return the words between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def amounts(guarantee: str) -> Callable[[Any], Any]:
    """The options of whatever has a guarantee, which the option ``--{guarantee}`` sets."""

    def decorated(command: Any) -> Any:
        for option in (
            click.option("--weight", type=click.FloatRange(0), help="Share of what nobody claims."),
            click.option("--limit", type=LimitType(), metavar="DEVICES", help="Devices at most; `none`: no limit."),
            click.option(
                f"--{guarantee}", type=click.FloatRange(0), help="Devices that it gets back whenever it wants them."
            ),
        ):
            command = option(command)
        return command

    return decorated


def members(users: str, groups: str, *, changing: bool) -> Callable[[Any], Any]:
    """The options for lists of users and groups; a command that changes a list can also add and remove names.

    Args:
        users: what the users are, for help.
        groups: what the groups are, for help.
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
    """Return the body of a request with what the command line names.

    Args:
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
        kind: of the document that ``-o json`` prints.
        path: of the API, to ask for it.
        name: as it is printed.
        fmt: the output format.
        listed: the list that has it, where the API does not show it alone.
    """

    kind: str
    path: str
    name: str
    fmt: str
    listed: str = ""


def create(target: Target, body: dict[str, Any]) -> None:
    """Create the object, which must not exist, and print it."""
    _put(target, body | {"new": True})


def change(target: Target, body: dict[str, Any], *, command: str) -> None:
    """Change what ``body`` has of the object, which must exist, and print it.

    Raises BAD_REQUEST if the command names nothing.
    """
    if not body:
        raise CalabashError("nothing is to be changed", hint=f"see `calabash {command} set --help`")
    _put(target, body | {"new": False})


def _put(target: Target, body: dict[str, Any]) -> None:
    """Ask for the object as ``body`` says; print its name or its document, and what the pool warns of."""
    pool = client()
    reply = pool.put(target.path, body)
    for text in reply.get("warnings", ()):
        say(f"warning: {text}")
    if target.fmt not in ("json", "yaml"):
        click.echo(target.name)
        return
    if target.listed:
        (found,) = [row for row in pool.items(target.listed) if row["name"] == target.name]
    else:
        found = pool.get(target.path)
    click.echo(output.document(target.kind, found, target.fmt))
