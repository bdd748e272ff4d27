"""Reader of YAML files from untrusted authors.

Accepts the subset of YAML that corresponds to JSON, and comments. Anchors, tags and duplicate keys are errors. Every
plain word is text, except ``true``, ``false``, ``null`` and decimal numbers. So ``on`` is not read as a boolean, and a
MAC is not read as a number of base 60.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from calabash.model.errors import CalabashError


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlLimits:
    """Limits of a file.

    Args:
        bytes_max: greatest size of the file.
        depth_max: greatest number of nested lists and maps.
        hint: hint of syntax errors.
    """

    bytes_max: int
    depth_max: int
    hint: str


def read_documents(text: str, file: str, limits: YamlLimits) -> Iterator[Any]:
    """Yield the documents of a file.

    Args:
        text: the contents of the file.
        file: the name of the file, for messages; "" if it has none.
        limits: limits of the file.

    Raises:
        CalabashError: the file is not valid or exceeds a limit; the message names the line.
    """
    if len(text.encode(errors="replace")) > limits.bytes_max:
        raise CalabashError(f"{file or 'the file'} is larger than {limits.bytes_max} bytes", hint="split the file")
    loader: _Loader | None = None
    try:
        loader = _Loader(text, limits.depth_max)
        while loader.check_data():  # type: ignore[no-untyped-call]
            yield loader.get_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "invalid YAML"
        problem = "".join(c if c.isprintable() else "?" for c in str(problem))[:200]
        raise CalabashError(f"{file or 'the file'}{line}: {problem}", hint=limits.hint) from None
    except (RecursionError, ValueError, OverflowError) as error:
        raise CalabashError(
            f"{file or 'the file'} is not valid YAML: {type(error).__name__}", hint="check the syntax"
        ) from None
    finally:
        if loader is not None:
            loader.dispose()


class _Loader(yaml.SafeLoader):
    """YAML loader for the subset that corresponds to JSON."""

    def __init__(self, text: str, depth_max: int) -> None:
        super().__init__(text)
        self._depth = 0
        self._depth_max = depth_max

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.composer.ComposerError(None, None, "anchors are not supported", event.start_mark)
        if getattr(event, "tag", None):
            raise yaml.composer.ComposerError(None, None, "tags are not supported", event.start_mark)
        self._depth += 1
        if self._depth > self._depth_max:
            raise yaml.composer.ComposerError(
                None, None, f"nested deeper than {self._depth_max} levels", event.start_mark
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) or key in found:
                problem = "a key is not text" if not isinstance(key, str) else f"duplicate key {key[:40]!r}"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            found[key] = self.construct_object(value_node, deep=True)
        return found


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Iterator[dict[Any, Any]]:
    yield loader.construct_mapping(node)


_Loader.yaml_implicit_resolvers = {}
_Loader.yaml_constructors = {**yaml.SafeLoader.yaml_constructors}
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"-?(0|[1-9][0-9]{0,30})", "-0123456789"),
    ("float", r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,3})?", "-0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first))
