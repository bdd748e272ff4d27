"""Messages with typed arguments: explanations, events and errors, which are rendered for each reader at the edge.

A message is a template, which is its code, and arguments. An argument that is the name of an object has a type that says
which kind of object it names, so that each reader sees only the names that it may read. Code that makes a decision creates the
message; other code passes it on, compares its template, or puts it into another message as an argument. Only ``render`` makes
text of it, for a given reader. The words of a template and of plain strings are never compared with names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import Formatter
from typing import ClassVar, Protocol, TypeVar

ANOTHERS = "(another's)"
MARKS = "\x02\x1f\x03"
"""Control characters that mark names in stored texts (``message_codec``), and that no rendered text contains."""
_WITHOUT_MARKS = str.maketrans("", "", MARKS)


@dataclass(frozen=True, slots=True)
class Name:
    """Name of an object that some readers may not see. Its text is redacted, so that no f-string reveals it."""

    value: str
    kind: ClassVar[str] = ""

    def __str__(self) -> str:
        return ANOTHERS if self.value else ""


class RequestName(Name):
    """ID of a waiting request or an allocation."""

    kind = "request"


class QueueName(Name):
    kind = "queue"


class TenantName(Name):
    kind = "tenant"


class UserName(Name):
    kind = "user"


class ProcessDescription(Name):
    """Description of an unmanaged process, with its user."""

    kind = "process"


class NetworkName(Name):
    """Path of an object of a tenant's network."""

    kind = "network"


class PodReference(Name):
    """A pod of a cluster: NAMESPACE/NAME; "/" for a pod that no longer exists."""

    kind = "pod"


class BudgetReference(Name):
    """A disruption budget of a cluster: NAMESPACE/NAME; without NAME several budgets of the namespace."""

    kind = "budget"


class ModelName(Name):
    """Model of a device, which every reader may see.

    In the scheduler it is the name that the caller gives to a kind of device; ``with_models`` replaces it for people.
    """

    kind = "model"

    def __str__(self) -> str:
        return self.value


NAME_TYPES: tuple[type[Name], ...] = (
    RequestName,
    QueueName,
    TenantName,
    UserName,
    ProcessDescription,
    NetworkName,
    PodReference,
    BudgetReference,
)
"""Types of the names that some readers may not see."""


@dataclass(frozen=True, slots=True)
class Names:
    """List of names of one or more types.

    Args:
        separator: text between two names; a list of model names may have another one than the default.
    """

    names: tuple[Name, ...]
    separator: str = ", "

    def __str__(self) -> str:
        return self.separator.join(map(str, self.names))


@dataclass(frozen=True, slots=True, init=False)
class Message:
    """A template with typed arguments.

    Args:
        template: a constant with replacement fields, as for ``str.format``. It is the code of the message: two messages say
            the same if their templates are equal.
        arguments: value of each field.
    """

    template: str
    arguments: tuple[tuple[str, Argument], ...]

    def __init__(self, template: str, /, **arguments: Argument) -> None:
        object.__setattr__(self, "template", template)
        object.__setattr__(self, "arguments", tuple(arguments.items()))

    def __str__(self) -> str:
        return redacted(self)

    def in_full(self) -> str:
        """Return the text with all names, for logs and administrators."""
        return render(self, ADMINISTRATOR)

    def argument(self, name: str) -> Argument:
        """Return the value of a field. Raises KeyError."""
        return dict(self.arguments)[name]

    def replaced(self, **arguments: Argument) -> Message:
        """Return the message with other values for some fields."""
        return Message(self.template, **(dict(self.arguments) | arguments))


Text = str | Message
"""A message, or a text that names no object that some readers may not see."""
Argument = str | int | float | Name | Names | Message
NameType = TypeVar("NameType", bound=Name)


class Viewer(Protocol):
    """The reader of a message."""

    def named(self, names: Sequence[Name]) -> str:
        """Return the text for a list of names, without those that the reader may not see."""


class FilteringViewer:
    """A reader to whom the names are shown that a function permits; each other name is replaced by ``ANOTHERS``."""

    def __init__(self, shown: Callable[[Name], bool]) -> None:
        self._shown = shown

    def named(self, names: Sequence[Name]) -> str:
        return ", ".join(name.value if not name.value or self._shown(name) else ANOTHERS for name in names)


ADMINISTRATOR = FilteringViewer(lambda _: True)
"""Reader of logs and other texts that only administrators read."""
UNKNOWN_VIEWER = FilteringViewer(lambda _: False)


def names(kind: type[NameType], values: Iterable[str]) -> Names:
    """Return a list of names of one type."""
    return Names(tuple(map(kind, values)))


def joined(separator: str, texts: Iterable[Text]) -> Text:
    """Return one text made of the texts that are not empty, with a separator between each two."""
    found = [text for text in texts if text]
    if all(isinstance(text, str) for text in found):
        return separator.join(map(str, found))
    template = separator.join(f"{{t{number}}}" for number in range(len(found)))
    return found[0] if len(found) == 1 else Message(template, **{f"t{n}": text for n, text in enumerate(found)})


def render(text: Text, viewer: Viewer) -> str:
    """Return the text for one reader, without control characters that ``message_codec`` uses as marks of names."""
    whole = text if isinstance(text, str) else "".join(_rendered(text, viewer))
    return whole.translate(_WITHOUT_MARKS) if any(mark in whole for mark in MARKS) else whole


def in_full(text: Text) -> str:
    """Return the text with all names, for logs and administrators."""
    return render(text, ADMINISTRATOR)


def redacted(text: Text) -> str:
    """Return the text with all names redacted, for unknown readers."""
    return render(text, UNKNOWN_VIEWER)


def pieces(message: Message) -> Iterator[str | Name | Names]:
    """Return the words and the names of a message in order."""
    values = dict(message.arguments)
    for literal, field, spec in _parsed(message.template):
        if literal:
            yield literal
        if field is None:
            continue
        value = values[field]
        if isinstance(value, Message):
            yield from pieces(value)
        elif isinstance(value, Name | Names):
            yield value
        else:
            yield format(value, spec)


def restricted(text: Text, viewer: Viewer, *, kept: Callable[[Name], bool]) -> Text:
    """Return the text for one reader, in which names that ``kept`` accepts stay arguments; lists of names become words.

    Two results are equal if their texts and their names are.
    """
    if isinstance(text, str):
        return render(text, viewer)
    parts: list[str | Name] = [""]
    for piece in pieces(text):
        if isinstance(piece, Name) and kept(piece):
            parts += [piece, ""]
        else:
            parts[-1] = f"{parts[-1]}{_as_text(piece, viewer).translate(_WITHOUT_MARKS)}"
    fields = {f"p{number}": part for number, part in enumerate(parts)}
    return Message("".join(f"{{{field}}}" for field in fields), **fields) if len(parts) > 1 else str(parts[0])


def mentions(text: Text, name: Name) -> bool:
    """Return True if the text has the name as an argument."""
    found = () if isinstance(text, str) else pieces(text)
    return any(name in piece.names if isinstance(piece, Names) else name == piece for piece in found)


def with_models(text: Text, display: Callable[[ModelName], str]) -> Text:
    """Return the text with each device model replaced by what ``display`` returns for it.

    In a list of models, equal results are written once.
    """
    if isinstance(text, str):
        return text
    return Message(text.template, **{name: _displayed(value, display) for name, value in text.arguments})


def _displayed(value: Argument, display: Callable[[ModelName], str]) -> Argument:
    match value:
        case ModelName():
            return ModelName(display(value))
        case Names(found, separator):
            shown = (ModelName(display(name)) if isinstance(name, ModelName) else name for name in found)
            return Names(tuple(dict.fromkeys(shown)), separator)
        case Message():
            shown_message = with_models(value, display)
            assert isinstance(shown_message, Message)
            return shown_message
    return value


def _rendered(message: Message, viewer: Viewer) -> Iterator[str]:
    return (_as_text(piece, viewer) for piece in pieces(message))


def _as_text(piece: str | Name | Names, viewer: Viewer) -> str:
    match piece:
        case ModelName():
            return piece.value
        case Name():
            return viewer.named((piece,)) if piece.value else ""
        case Names(found, separator) if all(isinstance(name, ModelName) for name in found):
            return separator.join(name.value for name in found)
        case Names(found):
            return viewer.named(found)
    return piece


@lru_cache(maxsize=1024)
def _parsed(template: str) -> tuple[tuple[str, str | None, str], ...]:
    """Return the fields of a template in order, each as (text before the field, name of the field, format)."""
    return tuple((literal, field, spec or "") for literal, field, spec, _ in Formatter().parse(template))
