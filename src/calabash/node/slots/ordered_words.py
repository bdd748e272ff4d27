"""Ordered loads and stores in the control pages, made by ``libcalabash-page`` because Python has no memory barriers.

Other processes see stores in program order on x86-64, but on aarch64 only with barriers. Fields whose order matters are
written by this module. ``docs/concepts/limits-and-usage-pages.md`` gives the memory order of each field.
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
    """Load the library. Raises CalabashError(BAD_FILE) if it has not been built."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CalabashError(
            f"cannot load {path.name}: {error}", reason=Reason.BAD_FILE, hint="build it with: make native"
        ) from error


class PageWords:
    """Ordered writes and reads of a ``limits`` page, which only this process writes.

    Addresses are those of structures or words in the mapped page, and are not checked.
    """

    def __init__(self, path: Path = LIBRARY) -> None:
        library = loaded(path)
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = ctypes.c_int if name == "cb_page_wake" else None
        self._library = library

    def store(self, address: int, value: int) -> None:
        """Store one 64-bit word after all earlier writes."""
        self._library.cb_page_store64(address, value)

    def set_gate(self, device: int, gate: int, neighbours: int, plan: PlanStruct | None) -> None:
        """Write gate and plan of a ``cb_limits_device``; ``plan`` None: the plan is unchanged.

        ``neighbours`` is the number of other active containers. A reader that sees only a part of the change reads
        again.
        """
        self._library.cb_page_set_gate(device, gate, neighbours, plan)

    def add_seen(self, device: int, seen_ns: int, unreported_ns: int) -> None:
        """Add to both counters, first to ``seen_ns``: a reader that sees the second change sees the first one too."""
        self._library.cb_page_add_seen(device, seen_ns, unreported_ns)

    def charges(self, device: int) -> tuple[int, int]:
        """Return ``unreported_ns`` and ``seen_ns`` of a device; the second includes all time in the first."""
        found = (_LONG * 2)()
        self._library.cb_page_charges(device, found)
        return found[0], found[1]

    def wake(self, word: int) -> None:
        """Wake all processes that sleep until the word at this address changes (futex)."""
        self._library.cb_page_wake(word)


@functools.cache
def page_words() -> PageWords:
    """Return the one instance of ``PageWords`` in this process."""
    return PageWords()
