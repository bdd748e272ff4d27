"""Stores and loads of the control pages whose order matters: by ``libcalabash-page``, for Python has no barriers.

On x86-64 stores are seen in the order in which they were made; on aarch64 they are not, unless the program says so. What
must be seen in order is written here. ``docs/concepts/limits-and-usage-pages.md`` gives the memory order of each field.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import calabash
from calabash.model.errors import CalabashError, Reason
from calabash.node.slots.layout import PlanStruct

LIBRARY = Path(calabash.__file__).resolve().parent / "_native" / "lib" / "libcalabash-page.so"

_ADDRESS, _WORD, _LONG = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
_ARGUMENTS = {
    "cb_page_store64": [_ADDRESS, _LONG],
    "cb_page_set_gate": [_ADDRESS, _WORD, _WORD, ctypes.POINTER(PlanStruct)],
    "cb_page_add_seen": [_ADDRESS, _LONG, _LONG],
    "cb_page_charges": [_ADDRESS, ctypes.POINTER(_LONG * 2)],
    "cb_page_wake": [_ADDRESS],
}


def loaded(path: Path = LIBRARY) -> ctypes.CDLL:
    """The library. Raises CalabashError(BAD_FILE) when it has not been built."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CalabashError(
            f"cannot load {path.name}: {error}", reason=Reason.BAD_FILE, hint="build it with: make native"
        ) from error


class PageWords:
    """Writes of a ``limits`` page, which this process alone writes, and its ordered reads. Addresses are the caller's care."""

    def __init__(self, path: Path = LIBRARY) -> None:
        library = loaded(path)
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = ctypes.c_int if name == "cb_page_wake" else None
        self._library = library

    def store(self, address: int, value: int) -> None:
        """One word, after everything that was written before."""
        self._library.cb_page_store64(address, value)

    def set_gate(self, device: int, gate: int, neighbours: int, plan: PlanStruct | None) -> None:
        """The order of a ``cb_limits_device``; no plan: as it is. A reader sees all of it, or looks again."""
        self._library.cb_page_set_gate(device, gate, neighbours, plan)

    def add_seen(self, device: int, seen_ns: int, unreported_ns: int) -> None:
        """Whoever sees the second has seen the first."""
        self._library.cb_page_add_seen(device, seen_ns, unreported_ns)

    def charges(self, device: int) -> tuple[int, int]:
        """``unreported_ns``, then ``seen_ns``: never without the part of the second that goes with the first."""
        found = (_LONG * 2)()
        self._library.cb_page_charges(device, found)
        return found[0], found[1]

    def wake(self, word: int) -> None:
        """Everybody who sleeps on a word, in whatever process."""
        self._library.cb_page_wake(word)


@functools.cache
def page_words() -> PageWords:
    """The one of this process."""
    return PageWords()
