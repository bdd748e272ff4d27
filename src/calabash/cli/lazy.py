"""Command groups whose modules are imported only when a command is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """Group of commands in modules of this package.

    Args:
        lazily: for each name its ``module:attribute`` and its one-line help.
        given: further arguments of the group.
    """

    def __init__(self, *, lazily: Mapping[str, tuple[str, str]], **given: Any) -> None:
        super().__init__(**given)
        self._lazily = lazily

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazily)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazily:
            return None
        module, attribute = self._lazily[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(f"calabash.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise click.exceptions.NoSuchCommand(error.command_name, possibilities=self._lazily, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazily.items()])
