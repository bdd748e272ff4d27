"""Names that are not shown are looked for again exactly when something has changed."""

from __future__ import annotations

from calabash.operations.hidden import HiddenNames


class Finder:
    """How often it was asked."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> frozenset[str]:
        self.times += 1
        return frozenset({f"name{self.times}"})


def test_what_was_found_is_found_again_as_long_as_nothing_has_changed() -> None:
    names, find, people = HiddenNames(), Finder(), {"a": 1}
    assert names.of("ann", people, (1, 2), find) == names.of("ann", people, (1, 2), find)
    assert find.times == 1


def test_another_mark_other_people_and_another_who_are_looked_for() -> None:
    names, find, people = HiddenNames(), Finder(), {"a": 1}
    names.of("ann", people, 1, find)
    assert names.of("ann", people, 2, find) == {"name2"}
    assert names.of("ann", dict(people), 2, find) == {"name3"}  # equal is not the same: they may have changed since
    assert names.of("bob", people, 2, find) == {"name4"}
    assert find.times == 4


def test_those_who_have_not_asked_for_longest_are_forgotten() -> None:
    names, find, people = HiddenNames(kept=2), Finder(), {"a": 1}
    for who in ("ann", "bob", "ann", "eve"):
        names.of(who, people, 1, find)
    assert find.times == 3
    names.of("ann", people, 1, find)
    assert find.times == 3
    names.of("bob", people, 1, find)
    assert find.times == 4
