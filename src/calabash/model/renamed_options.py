"""Former names of command-line options, which are accepted with a warning for one release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def with_current_names(words: Sequence[str], renamed: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Replace former option names in the arguments of a command.

    Args:
        words: arguments of the command; words after ``--`` are not options and are not changed.
        renamed: the present name of each former option name, both with their dashes.

    Returns:
        The arguments with present names, and a warning for each former name that occurs.
    """
    end = words.index("--") if "--" in words else len(words)
    found, former = [], []
    for word in words[:end]:
        name, equals, value = word.partition("=")
        if name in renamed:
            former.append(name)
            word = renamed[name] + equals + value  # noqa: PLW2901
        found.append(word)
    warnings = [f"option {name} is deprecated; use {renamed[name]}" for name in dict.fromkeys(former)]
    return [*found, *words[end:]], warnings
