"""Budgets of property tests: few examples, always the same ones, in a test run; many new ones in ``make examples``.

A property test names the number of examples that ``make examples`` tries in each round. ``make test`` and ``make test-all``
try a quarter of them, at least ``LEAST``, which are the same on every machine, so that a failure is the change's own.
"""

from __future__ import annotations

import os

from hypothesis import settings

LEAST = 5
SEARCHING = os.environ.get("CALABASH_EXAMPLES") == "random"

_DEFAULT = 100  # Hypothesis' own number of examples, for properties that do not name one


def examples(full: int) -> int:
    """Return how many of ``full`` examples (or seeds) this run tries."""
    return full if SEARCHING else max(-(-full // 4), min(full, LEAST))


def load_profile() -> None:
    """Select the settings of all property tests. A deadline would make them depend on the machine's load."""
    settings.register_profile("same", deadline=None, derandomize=True, print_blob=True, max_examples=examples(_DEFAULT))
    settings.register_profile("random", deadline=None, print_blob=True, max_examples=_DEFAULT)
    settings.load_profile("random" if SEARCHING else "same")
