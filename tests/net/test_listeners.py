"""Listening sockets of another network namespace, as read from the kernel."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from tests.net import needs

from calabash.adapters.links import namespaces
from calabash.adapters.links.listeners import NamespaceSockets
from calabash.controllers.lab import namespaces as made

FOUR, SIX, OTHER = "10.0.1.11", "fd00::11", "10.0.1.12"


@pytest.fixture(scope="module")
def namespace(lab_prefix: str) -> Iterator[str]:
    """Create a namespace with three addresses."""
    needs.need()
    name = f"l{lab_prefix[1:]}-sockets"
    namespaces.create(name)
    try:
        made.ip(
            [
                ("link", "set", "lo", "up"),
                *(
                    ("address", "add", address, "dev", "lo", "nodad")
                    for address in (f"{SIX}/128", f"{FOUR}/32", f"{OTHER}/32")
                ),
            ],
            name=name,
        )
        yield name
    finally:
        namespaces.remove(name)


@pytest.mark.parametrize(
    ("bound", "heard", "not_heard"),
    [
        (FOUR, (FOUR,), (SIX, OTHER)),
        ("0.0.0.0", (FOUR, OTHER), (SIX,)),
        ("::", (FOUR, OTHER, SIX), ()),  # of both versions, as IPV6_V6ONLY is off
        (SIX, (SIX,), (FOUR,)),
        ("127.0.0.1", (), (FOUR, SIX)),
    ],
)
def test_listening_socket_is_found_at_the_addresses_at_which_it_takes_connections(
    namespace: str, bound: str, heard: tuple[str, ...], not_heard: tuple[str, ...]
) -> None:
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    sockets = NamespaceSockets(namespaces.path_of(namespace))
    try:
        with made.open_socket(namespace, family, socket.SOCK_STREAM) as listener:
            listener.bind((bound, 8100))
            assert not any(sockets.listens(ip_address(one), 8100) for one in (FOUR, SIX, OTHER))
            listener.listen()
            assert all(sockets.listens(ip_address(one), 8100) for one in heard)
            assert not any(sockets.listens(ip_address(one), 8100) for one in not_heard)
            assert not sockets.listens(ip_address(FOUR), 8101)
            other = NamespaceSockets(Path("/proc/self/ns/net"))
            try:
                assert not other.listens(ip_address(FOUR), 8100)
            finally:
                other.close()
        assert not any(sockets.listens(ip_address(one), 8100) for one in (FOUR, SIX, OTHER))
    finally:
        sockets.close()
