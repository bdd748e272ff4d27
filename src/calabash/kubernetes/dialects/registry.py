"""Registry of all dialects: the modules of this package that define ``DIALECT``."""

from __future__ import annotations

import importlib
import pkgutil

from calabash.kubernetes import dialects
from calabash.kubernetes.dialects.protocol import Asking, Dialect
from calabash.model.errors import CalabashError


def _discover() -> tuple[Dialect, ...]:
    found: list[Dialect] = []
    for info in pkgutil.iter_modules(dialects.__path__):
        name = f"{dialects.__name__}.{info.name}"
        if name == __name__ or info.name in _USERS:
            continue
        dialect = getattr(importlib.import_module(name), "DIALECT", None)
        if isinstance(dialect, Dialect):
            found.append(dialect)
    return tuple(sorted(found, key=lambda dialect: (dialect.order, dialect.name)))


_USERS = ("facts", "translate")  # these modules import this one
DIALECTS = _discover()
_NAMES = frozenset(name for dialect in DIALECTS for name in dialect.resources)
_PREFIXES = tuple(dialect.prefix for dialect in DIALECTS if dialect.prefix)


def dialect_of(asking: Asking) -> Dialect | None:
    """Return the dialect in which the container asks for devices; None if it asks for no device.

    If several dialects recognize the container, the one with precedence (``Dialect.order``) is returned.

    Raises:
        CalabashError: the container mixes the resource names of two dialects.
    """
    claimants = [dialect for dialect in DIALECTS if dialect.claims(asking)]
    if not claimants:
        return None
    chosen = claimants[0]
    for other in claimants[1:]:
        named = [name for name in asking.amounts if asking.has(name) and other.names(name)]
        if not named or any(not chosen.names(name) for name in named):
            words = ", ".join(
                sorted(n for n in asking.amounts if asking.has(n) and (chosen.names(n) or other.names(n)))
            )
            raise CalabashError(
                f"the container mixes resource names of {chosen.system} and of {other.system}: {words or other.name}",
                hint="use the names of one system in each container",
            )
    return chosen


def is_ours_to_translate(resource: str) -> bool:
    """Return True if a resource name belongs to any dialect, so that admission replaces it by Calabash's own names."""
    return resource in _NAMES or resource.startswith(_PREFIXES)
