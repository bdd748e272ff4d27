"""Allocation of free numbers, addresses and MACs.

No state is kept: each function gets the values in use and returns a free one, as a rule the smallest. So the result
depends only on the existing objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable

from calabash.model.addresses import Address, Network
from calabash.model.errors import CalabashError, Reason
from calabash.net.addresses.derived import PORT_NUMBERS_MAX, port_mac


def free_number(taken: Iterable[int], most: int, what: str) -> int:
    """Return the smallest number in 1..``most`` that is not in ``taken``.

    Args:
        taken: the numbers in use.
        most: the highest number allowed.
        what: description of the object that needs the number, for the error message.

    Raises:
        CalabashError: NO_CAPACITY if all numbers are taken.
    """
    used = set(taken)
    for number in range(1, most + 1):
        if number not in used:
            return number
    raise CalabashError(
        f"{what}: all {most} numbers are in use", reason=Reason.NO_CAPACITY, hint="delete objects that are not needed"
    )


def allocated_number(asked: int, was: int, taken: Collection[int], most: int, subject: str) -> int:
    """Return the number of an object: the requested one, else the current one, else the smallest free one.

    Args:
        asked: the requested number, 0 for none.
        was: the current number, 0 for a new object.
        taken: numbers of the other objects.
        most: the highest number allowed.
        subject: the object, for messages.

    Raises:
        CalabashError: CONFLICT if the requested number is taken or out of range, NO_CAPACITY if none is free.
    """
    if asked and asked != was:
        if not 1 <= asked <= most or asked in taken:
            raise CalabashError(
                f"{subject}: number {asked} is taken or not between 1 and {most}",
                reason=Reason.CONFLICT,
                hint="leave the number out to have one allocated",
            )
        return asked
    return was or free_number(taken, most, subject)


def free_address(network: Network, taken: Callable[[int], bool], subject: str) -> Address:
    """Return the smallest address of ``network`` that a host can have and that is not taken.

    Args:
        taken: returns True for an address, as an integer, that is in use.
        subject: the object that needs the address, for the message.

    Raises:
        CalabashError: NO_CAPACITY if all addresses are taken.
    """
    first, last = host_range(network)
    for number in range(first, last + 1):
        if not taken(number):
            return network[number - int(network.network_address)]
    raise CalabashError(
        f"{subject}: all {last - first + 1} addresses of {network} are taken",
        reason=Reason.NO_CAPACITY,
        hint="delete objects that are not needed, or use another range",
    )


def host_range(network: Network) -> tuple[int, int]:
    """Return the first and the last address, as integers, that a host can have.

    Excludes the network address and, for IPv4, the broadcast address.
    """
    first, last = int(network.network_address), int(network.broadcast_address)
    return first + 1, last - 1 if network.version == 4 else last


def check_host_address(address: Address, network: Network, subject: str) -> None:
    """Raise CalabashError unless a host of ``network`` can have the address. ``subject`` names the object in the message."""
    if address not in network:
        raise CalabashError(
            f"{subject}: {address} is not in {network}", hint="leave the address out to have one allocated"
        )
    first, last = host_range(network)
    if not first <= int(address) <= last:
        use = "network" if int(address) < first else "broadcast"
        raise CalabashError(
            f"{subject}: {address} is the {use} address of {network}",
            hint="leave the address out to have one allocated",
        )


def free_mac(vpc_number: int, taken: Container[str], ports: int) -> str:
    """Return a free MAC for a new port of a VPC.

    Args:
        vpc_number: number of the VPC, which is part of the MAC.
        taken: MACs of the VPC's ports.
        ports: number of ports in the VPC. The search begins with the next port number, which is usually free.

    Raises:
        CalabashError: NO_CAPACITY if all MACs of the VPC are taken.
    """
    for step in range(PORT_NUMBERS_MAX):
        mac = port_mac(vpc_number, (ports + step) % PORT_NUMBERS_MAX + 1)
        if mac not in taken:
            return mac
    raise CalabashError("all MACs of the VPC are taken", reason=Reason.NO_CAPACITY)
