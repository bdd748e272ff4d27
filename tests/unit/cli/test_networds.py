"""Words of network commands: rates, addresses with numbers, rules, short names of ports."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.cli import networds
from calabash.model.addresses import check_label
from calabash.model.errors import CalabashError

PORTS = {"red": ["red/a/web1", "red/a/web2", "red/b/web2"]}


@given(st.integers(0, networds.BITS_MAX))
def test_a_rate_reads_as_it_is_written_and_its_policy_has_a_name(bits: int) -> None:
    text = networds.rate_text(bits)
    assert networds.rate("none" if text == "-" else text) == bits
    assert check_label(networds.policy_name(bits, bits), "policy")
    assert check_label(networds.policy_name(networds.BITS_MAX - 1, bits), "policy")


def test_short_names_mean_the_one_port_of_that_name() -> None:
    find = PORTS.__getitem__
    assert networds.port_named("red", "web1", "--to", find) == "red/a/web1"
    assert networds.port_named("red", "b/web2", "--to", find) == "red/b/web2"
    assert networds.port_named("red", "red/b/web2", "--to", find) == "red/b/web2"
    with pytest.raises(CalabashError, match="has 2 ports 'web2': red/a/web2, red/b/web2"):
        networds.port_named("red", "web2", "--to", find)
    with pytest.raises(CalabashError, match="has no port 'web3'"):
        networds.port_named("red", "web3", "--to", find)
    with pytest.raises(CalabashError, match="is not of VPC red"):
        networds.port_named("red", "blue/a/web1", "--to", find)


def test_rules_and_addresses_read_as_they_are_meant() -> None:
    assert networds.address_and_number("[fd00::1]:443", "--vip") == ("fd00::1", 443)
    assert networds.rule("udp:5000-5010", "fd00::/64", "ingress", "red") == {
        "direction": "ingress",
        "protocol": "udp",
        "ports": [5000, 5010],
        "peer": "fd00::/64",
        "peer_group": "",
    }
    assert networds.rule("any", "web", "egress", "red")["peer_group"] == "red/web"
    assert networds.rule("icmp", "red/web", "egress", "red")["peer_group"] == "red/web"
    assert networds.check("http:/healthz", 0.5, 3) == {
        "kind": "http",
        "path": "/healthz",
        "interval_s": 0.5,
        "failures": 3,
    }
    assert networds.words(("a, b", "c", "")) == ["a", "b", "c"]


READERS: tuple[Callable[[str], object], ...] = (
    networds.rate,
    lambda text: networds.address_and_number(text, "--vip"),
    lambda text: networds.rule(text, "web", "ingress", "red"),
    lambda text: networds.rule("tcp:1", text, "ingress", "red"),
    lambda text: networds.check(text, None, None),
    lambda text: networds.backends("red", [text], lambda _: []),
    lambda text: networds.number(text, "--to"),
)


@given(st.text(max_size=30) | st.text(alphabet="0123456789.:/-GMkbit[]", max_size=20), st.sampled_from(READERS))
def test_whatever_is_typed_is_read_or_refused_with_a_hint(text: str, read: Callable[[str], object]) -> None:
    told: CalabashError | None = None
    try:
        read(text)
    except CalabashError as error:
        told = error
    assert told is None or told.hint
