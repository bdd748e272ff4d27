"""Tests of the arguments of network commands: rates, addresses with port numbers, rules, short names of ports."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.cli.net import parsing as net_parsing
from calabash.model.addresses import check_label
from calabash.model.errors import CalabashError

PORTS = {"red": ["red/a/web1", "red/a/web2", "red/b/web2"]}


@given(st.integers(0, net_parsing.BITS_MAX))
def test_a_rate_reads_as_it_is_written_and_its_policy_has_a_name(bits: int) -> None:
    text = net_parsing.rate_text(bits)
    assert net_parsing.rate("none" if text == "-" else text) == bits
    assert check_label(net_parsing.policy_name(bits, bits), "policy")
    assert check_label(net_parsing.policy_name(net_parsing.BITS_MAX - 1, bits), "policy")


def test_short_names_mean_the_one_port_of_that_name() -> None:
    find = PORTS.__getitem__
    assert net_parsing.port_named("red", "web1", "--to", find) == "red/a/web1"
    assert net_parsing.port_named("red", "b/web2", "--to", find) == "red/b/web2"
    assert net_parsing.port_named("red", "red/b/web2", "--to", find) == "red/b/web2"
    with pytest.raises(CalabashError, match="has 2 ports 'web2': red/a/web2, red/b/web2"):
        net_parsing.port_named("red", "web2", "--to", find)
    with pytest.raises(CalabashError, match="has no port 'web3'"):
        net_parsing.port_named("red", "web3", "--to", find)
    with pytest.raises(CalabashError, match="is not an object of VPC red"):
        net_parsing.port_named("red", "blue/a/web1", "--to", find)


def test_rules_and_addresses_read_as_they_are_meant() -> None:
    assert net_parsing.address_and_number("[fd00::1]:443", "--vip") == ("fd00::1", 443)
    assert net_parsing.rule("udp:5000-5010", "fd00::/64", "ingress", "red") == {
        "direction": "ingress",
        "protocol": "udp",
        "ports": [5000, 5010],
        "peer": "fd00::/64",
        "peer_group": "",
    }
    assert net_parsing.rule("any", "web", "egress", "red")["peer_group"] == "red/web"
    assert net_parsing.rule("icmp", "red/web", "egress", "red")["peer_group"] == "red/web"
    assert net_parsing.check("http:/healthz", 0.5, 3) == {
        "kind": "http",
        "path": "/healthz",
        "interval_s": 0.5,
        "failures": 3,
    }
    assert net_parsing.words(("a, b", "c", "")) == ["a", "b", "c"]


READERS: tuple[Callable[[str], object], ...] = (
    net_parsing.rate,
    lambda text: net_parsing.address_and_number(text, "--vip"),
    lambda text: net_parsing.rule(text, "web", "ingress", "red"),
    lambda text: net_parsing.rule("tcp:1", text, "ingress", "red"),
    lambda text: net_parsing.check(text, None, None),
    lambda text: net_parsing.backends("red", [text], lambda _: []),
    lambda text: net_parsing.number(text, "--to"),
)


@given(st.text(max_size=30) | st.text(alphabet="0123456789.:/-GMkbit[]", max_size=20), st.sampled_from(READERS))
def test_whatever_is_typed_is_read_or_refused_with_a_hint(text: str, read: Callable[[str], object]) -> None:
    told: CalabashError | None = None
    try:
        read(text)
    except CalabashError as error:
        told = error
    assert told is None or told.hint
