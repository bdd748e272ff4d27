"""Parser of tariffs in YAML files; each error names its line.

Numbers and times of day are kept as text, so that 0.1 is not rounded to a binary fraction and 22:00 is not read as 1320.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from calabash.api.billing import TariffSettings
from calabash.model.errors import CalabashError, Reason
from calabash.platform.billing.documents import tariff_of

FILE_BYTES_MAX = 60_000
_PATH = re.compile(r" - at `\$(.*?)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"unknown field `(\w+)`")
_HINT = "see docs/how-to/send-invoices.md for a complete example"


def read_tariff(path: Path) -> TariffSettings:
    """Read the tariff of a file. Raises CalabashError(BAD_FILE) with the line."""
    text = path.read_bytes()
    if len(text) > FILE_BYTES_MAX:
        raise _wrong(path, 0, f"has {len(text)} bytes, the limit is {FILE_BYTES_MAX}")
    root: yaml.Node | None = None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            raise _wrong(path, 1, "is empty")
        value = _plain(path, root, depth=0)
        settings = msgspec.convert(value, TariffSettings)
        tariff_of(settings)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise _wrong(path, mark.line + 1 if mark else 0, str(getattr(error, "problem", "") or "is not YAML")) from None
    except (ValueError, RecursionError) as error:
        message = str(error)
        raise _wrong(path, _line(root, message), _PATH.sub(r" (at \1)", message)) from None
    except CalabashError as error:
        if error.reason is Reason.BAD_FILE:
            raise
        raise _wrong(path, _line_named(root, error.message), error.message, hint=error.hint) from None
    return settings


def _plain(path: Path, node: yaml.Node, *, depth: int) -> Any:
    """Convert a YAML node to dicts, lists, texts and None; other scalars, such as dates and numbers, stay text."""
    if depth > 8:
        raise _wrong(path, _line_of(node), "is nested more than 8 levels deep")
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in found:
                raise _wrong(path, _line_of(key), f"has {key.value if isinstance(key.value, str) else 'a key'!r} twice")
            found[key.value] = _plain(path, value, depth=depth + 1)
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_plain(path, item, depth=depth + 1) for item in node.value]
    return None if node.tag == "tag:yaml.org,2002:null" else node.value


def _line(root: yaml.Node | None, message: str) -> int:
    """Return the number of the line to which an error message of msgspec refers; 0 without a document."""
    match = _PATH.search(message)
    node = root
    if node is None:
        return 0
    for name, index in _STEP.findall(match[1] if match else ""):
        if isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == name), node)
        elif isinstance(node, yaml.SequenceNode) and index:
            node = node.value[int(index)]
    unknown = _UNKNOWN.search(message)
    if unknown and isinstance(node, yaml.MappingNode):
        return next((_line_of(key) for key, _ in node.value if key.value == unknown[1]), _line_of(node))
    return _line_of(node)


def _line_named(root: yaml.Node | None, message: str) -> int:
    """Return the line of the longest YAML scalar that occurs in an error message; 0 if no scalar does."""
    texts = [node for node in (_scalars(root) if root else ()) if len(node.value) > 1 and node.value in message]
    return _line_of(max(texts, key=lambda node: len(node.value))) if texts else 0


def _scalars(node: yaml.Node) -> Iterator[yaml.ScalarNode]:
    if isinstance(node, yaml.ScalarNode):
        yield node
        return
    for child in node.value:
        if isinstance(child, tuple):
            yield from _scalars(child[1])
        else:
            yield from _scalars(child)


def _line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _wrong(path: Path, line: int, what: str, *, hint: str = _HINT) -> CalabashError:
    where = f"{path}, line {line}" if line else str(path)
    return CalabashError(f"{where}: {what}", reason=Reason.BAD_FILE, hint=hint)
