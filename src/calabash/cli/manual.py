"""``calabash man`` and ``completion``: man pages and shell completion, generated from the command tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

import calabash
from calabash.cli.failure import EXIT_CODES
from calabash.cli.lazy import LazyGroup
from calabash.model.errors import CalabashError, file_reason

SHELLS = ("bash", "zsh", "fish")


def commands(
    command: click.Command, path: tuple[str, ...], parent: click.Context | None = None
) -> Iterator[tuple[tuple[str, ...], click.Context]]:
    """Yield every command below ``command`` with its path and its context, depth first."""
    context = click.Context(
        command,
        info_name=path[-1],
        parent=parent,
        terminal_width=100,
        max_content_width=100,
        help_option_names=["-h", "--help"],
    )
    yield path, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from commands(child, (*path, name), context)


def man_pages(tree: click.Command, name: str) -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of the man page of each command of a tree."""
    for path, context in commands(tree, (name,)):
        yield f"{'-'.join(path)}.1", man_page(path, context)


def man_page(path: tuple[str, ...], context: click.Context) -> str:
    """Return the man page of one command in the macros of man(7)."""
    command = context.command
    words, page = " ".join(path), "-".join(path)
    lines = [
        f'.TH "{_text(page.upper())}" "1" "" "Calabash {calabash.__version__}" "Calabash Manual"',
        ".SH NAME",
        f"{_text(page)} \\- {_text(command.get_short_help_str(200).rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_text(words)}",
        _text(" ".join(command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        *_description(command.help or ""),
    ]
    options = [record for p in command.get_params(context) if (record := p.get_help_record(context)) is not None]
    if options:
        lines.append(".SH OPTIONS")
        for names, help_text in options:
            lines += [".TP", f".B {_text(names)}", _text(" ".join(help_text.split()))]
    for title, entries in _children(command, context).items():
        lines.append(f".SH {_text(title.upper())}")
        for name, help_text in entries:
            lines += [".TP", f".BR {_text(f'{page}-{name}')} (1)", _text(help_text)]
    if len(path) == 1:
        lines.append(".SH EXIT STATUS")
        for code, (meaning, _) in EXIT_CODES.items():
            lines += [".TP", f".B {code}", _text(meaning)]
    else:
        lines += [".SH SEE ALSO", f".BR {_text('-'.join(path[:-1]))} (1)"]
    return "\n".join(filter(None, lines)) + "\n"


def _children(command: click.Command, context: click.Context) -> dict[str, list[tuple[str, str]]]:
    """Return the commands of a group by section, with their one-line help."""
    if isinstance(command, LazyGroup):
        return {title: [(n, text) for n, (_, text) in entries.items()] for title, entries in command.sections.items()}
    if not isinstance(command, click.Group):
        return {}
    children = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    shown = [
        (name, child.get_short_help_str(200)) for name, child in children if child is not None and not child.hidden
    ]
    return {"Commands": shown}


def _description(help_text: str) -> list[str]:
    """Return the paragraphs of a command's help; lines of paragraphs that begin with a backspace are not filled."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", help_text.strip()):
        lines.append(".PP")
        literal, text = "\b" in paragraph, paragraph.replace("\b", "")
        if literal:
            lines += [".nf", *(_text(line.strip()) for line in text.splitlines() if line.strip()), ".fi"]
        else:
            lines.append(_text(" ".join(text.split())))
    return lines


def _text(text: str) -> str:
    """Return text in which no character has a meaning for roff."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace('"', "\\(dq")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


@click.command("man")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def write_man_pages(directory: Path) -> None:
    """Write the man pages of all commands into DIRECTORY, such as ~/.local/share/man/man1."""
    from calabash.cli.commands import cli  # noqa: PLC0415 - the tree contains this command
    from calabash.cli.kubectl.group import cli as kubectl  # noqa: PLC0415 - imports the client of Kubernetes

    count = 0
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for tree, name in ((cli, "calabash"), (kubectl, "kubectl-calabash")):
            for file, text in man_pages(tree, name):
                (directory / file).write_text(text)
                count += 1
    except OSError as error:
        raise CalabashError(
            f"{directory} cannot be written: {error.strerror or error}",
            reason=file_reason(error),
            hint="choose another directory",
        ) from None
    click.echo(f"{directory}: {count} pages")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands and options in SHELL.

    \b
    bash: calabash completion bash > ~/.local/share/bash-completion/completions/calabash
    zsh:  calabash completion zsh > DIRECTORY/_calabash, for a directory of $fpath
    fish: calabash completion fish > ~/.config/fish/completions/calabash.fish
    """  # noqa: D301 - click reads the backspace
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - slow to import

    from calabash.cli.commands import cli  # noqa: PLC0415 - the tree contains this command

    found = get_completion_class(shell)
    assert found is not None, shell
    script = found(cli, {}, "calabash", "_CALABASH_COMPLETE")
    click.echo(script.source_template % script.source_vars())
