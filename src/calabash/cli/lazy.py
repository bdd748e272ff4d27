"""Command groups whose help has named sections and whose modules are imported only when a command is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from calabash.cli.failure import print_on_stderr
from calabash.cli.former import Former
from calabash.model.renamed_options import with_current_names

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Title of a section -> name of a command -> its ``module:attribute`` in this package and its one-line help.
Sections = Mapping[str, Mapping[str, tuple[str, str]]]


class UnknownCommand(click.UsageError):
    """Error for the name of no command.

    Args:
        name: the name that was given.
        near: present names of the commands with similar names.
        ctx: context of the group.
    """

    def __init__(self, name: str, near: list[str], ctx: click.Context) -> None:
        super().__init__(f"no such command '{name}'", ctx)
        self.possibilities = near


class LazyGroup(click.Group):
    """Group of commands in modules of this package, which its help lists by section.

    Args:
        sections: the commands. Their help is in the table so that listing commands imports no module.
        former: former names of commands below this group, which are accepted with a warning.
        former_options: for the path of a command below this group, the present name of each former option name.
        given: further arguments of the group.
    """

    def __init__(
        self,
        *,
        sections: Sections,
        former: Mapping[str, Former] | None = None,
        former_options: Mapping[str, Mapping[str, str]] | None = None,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self.sections = sections
        self._commands = {name: entry for section in sections.values() for name, entry in section.items()}
        self._former, self._former_options = former or {}, former_options or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands:
            return None
        module, attribute = self._commands[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(f"calabash.cli.{module}"), attribute)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - not needed by commands

        names = [CompletionItem(n, help=text) for n, (_, text) in self._commands.items() if n.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        words = self._with_present_options(ctx, self._with_present_names(ctx, args))
        try:
            return super().resolve_command(ctx, words)
        except click.exceptions.NoSuchCommand as error:
            known = {name: name for name in self._commands} | {name: f.path for name, f in self._former.items()}
            near = dict.fromkeys(known[name] for name in get_close_matches(error.command_name, known))
            raise UnknownCommand(error.command_name, list(near), ctx) from None

    def _with_present_names(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replace the former name of a command, and print one line with the present one, except for completion."""
        for length in (3, 2, 1):
            name = " ".join(args[:length])
            if name in self._former:
                former = self._former[name]
                if not ctx.resilient_parsing:
                    above = ctx.command_path
                    print_on_stderr(f"warning: `{above} {name}` is deprecated; use `{above} {former.path}`")
                return former.words(args[length:])
        return args

    def _with_present_options(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replace former names of options, and print one line for each with the present one, except for completion."""
        for length in (4, 3, 2, 1):
            renamed = self._former_options.get(" ".join(args[:length]))
            if renamed:
                words, warnings = with_current_names(args[length:], renamed)
                for warning in () if ctx.resilient_parsing else warnings:
                    print_on_stderr(f"warning: {warning}")
                return [*args[:length], *words]
        return args

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._commands))
        for title, commands in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in commands.items()])
