"""Device filters: matching, and positions in error messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.broker.filters import KEYS, CardFacts, CardFilter, FilterTerm, parse_filter, parse_filters, version_of
from calabash.model.errors import CalabashError, Reason

A100 = CardFacts(
    memory=40960,
    free_memory=20480,
    model="NVIDIA A100-SXM4-40GB",
    compute_capability="8.0",
    driver="nvidia 580.65.06",
    cuda="13.0",
    server="lab01",
    uuid="GPU-0001",
)


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("memory>=40GiB", True),
        ("memory>40GiB", False),
        ("memory<40GiB", False),
        ("memory=40960MiB", True),
        ("memory!=40GiB", False),
        ("memory <= 40 GiB", True),
        ("free_memory>=20GiB", True),
        ("free_memory>20GiB", False),
        ("model~a100", True),
        ("model~H100", False),
        ("model=nvidia a100-sxm4-40gb", True),
        ("model!=nvidia a100-sxm4-40gb", False),
        ("compute_capability>=8.0", True),
        ("compute_capability>8", False),
        ("compute_capability=8", True),
        ("compute_capability>=8.6", False),
        ("driver=580", True),
        ("driver>580", False),
        ("driver>=580.65.7", False),
        ("driver>=580.65.6", True),
        ("cuda>=13", True),
        ("server=lab01", True),
        ("server~lab", True),
        ("server!=lab01", False),
        ("uuid=gpu-0001", True),
        ("memory>=40GiB,model~A100", True),
        ("memory>=40GiB,model~H100", False),
        (" MEMORY >= 40GiB , Model ~ A100 ", True),
    ],
)
def test_filter_accepts_matching_devices_only(text: str, accepted: bool) -> None:
    assert parse_filter(text).accepts(A100) is accepted


@pytest.mark.parametrize("key", KEYS)
def test_unknown_property_satisfies_no_term(key: str) -> None:
    if key == "free_memory":  # none is free is told, too
        return assert_free_memory_of_a_full_card_is_known()
    values = {"memory": "1GiB", "model": "a", "server": "a", "uuid": "a"}
    terms = [f"{key}{sign}{values.get(key, '1.0')}" for sign in ("=", "!=")]
    assert not any(parse_filter(term).accepts(CardFacts()) for term in terms)
    return None


def assert_free_memory_of_a_full_card_is_known() -> None:
    assert parse_filter("free_memory<1GiB").accepts(CardFacts())


@pytest.mark.parametrize(
    ("text", "position", "what", "hint"),
    [
        ("", 1, "a term is missing", "memory>=40GiB"),
        ("memory>=1GiB,,", 14, "a term is missing", "memory>=40GiB"),
        ("  colour=red", 3, "'colour' is no key", "memory"),
        (">=40GiB", 1, "a key is missing", "memory"),
        ("memory", 7, "an operator is missing behind memory", ">="),
        ("model>A100", 6, "model has no operator >", "~"),
        ("memory~4", 7, "memory has no operator ~", ">="),
        ("memory>=", 9, "memory is compared with nothing", "memory>=40GiB"),
        ("memory>=40", 9, "has no unit", "GiB"),
        ("model~A100,memory>=forty", 20, "is not a memory size", "GiB"),
        ("driver>=new", 9, "'new' is no version", "driver>=580"),
        ("model~A100 memory>=40GiB", 7, "is no text to compare with", "commas"),
    ],
)
def test_invalid_filter_is_reported_with_its_position(text: str, position: int, what: str, hint: str) -> None:
    with pytest.raises(CalabashError) as caught:
        parse_filter(text)
    assert caught.value.reason is Reason.BAD_REQUEST
    assert f"position {position}: " in caught.value.message
    assert what in caught.value.message
    assert hint in caught.value.hint


def test_several_filters_must_all_hold() -> None:
    assert parse_filters(["memory>=40GiB", "model~A100"]) == parse_filter("memory>=40GiB,model~A100")
    assert parse_filters([]).accepts(CardFacts())


@given(st.text(max_size=80) | st.from_regex(r"(memory|model|driver|cuda)\s?(=|!=|>=|~|<)?[^,]{0,9}(,.{0,20})?"))
def test_arbitrary_text_is_parsed_or_refused_with_position_and_hint(text: str) -> None:
    refused: CalabashError | None = None
    try:
        found = parse_filter(text)
    except CalabashError as error:
        refused = error
    if refused is None:
        assert parse_filter(str(found)) == found
    else:
        assert (refused.reason, "position" in refused.message, bool(refused.hint)) == (Reason.BAD_REQUEST, True, True)


sizes = st.integers(1, 1 << 21)
versions = st.lists(st.integers(0, 12), min_size=1, max_size=3).map(tuple)


def _holds(key: str, sign: str, value: int | tuple[int, ...], card: CardFacts) -> bool:
    return CardFilter((FilterTerm(key=key, operator=sign, value=value),)).accepts(card)


def _one_of_three_ways(key: str, value: int | tuple[int, ...], card: CardFacts) -> None:
    less, same, more = (_holds(key, sign, value, card) for sign in ("<", "=", ">"))
    assert less + same + more == 1
    assert _holds(key, "<=", value, card) == (less or same)
    assert _holds(key, ">=", value, card) == (more or same)
    assert _holds(key, "!=", value, card) == (not same)


@given(sizes, sizes)
def test_size_terms_compare_in_order(told: int, asked: int) -> None:
    _one_of_three_ways("memory", asked, CardFacts(memory=told))
    assert _holds("memory", "<", asked, CardFacts(memory=told)) == (told < asked)


@given(versions, versions)
def test_version_terms_compare_to_the_precision_of_the_filter(told: tuple[int, ...], asked: tuple[int, ...]) -> None:
    card = CardFacts(driver="nvidia " + ".".join(map(str, told)))
    assert version_of(card.driver) == told
    _one_of_three_ways("driver", asked, card)
