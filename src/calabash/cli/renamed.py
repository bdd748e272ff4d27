"""Commands that accept former names of their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from calabash.cli.failure import print_on_stderr
from calabash.model.renamed_options import with_current_names


class CommandWithRenamedOptions(click.Command):
    """Command that accepts former option names, which its help does not list, and prints a warning for each.

    Args:
        renamed: the present name of each former option name.
        given: further arguments of the command.
    """

    def __init__(self, *, renamed: Mapping[str, str], **given: Any) -> None:
        super().__init__(**given)
        self._renamed = renamed

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words, warnings = with_current_names(args, self._renamed)
        for warning in warnings:
            print_on_stderr(f"warning: {warning}")
        return super().parse_args(ctx, words)
