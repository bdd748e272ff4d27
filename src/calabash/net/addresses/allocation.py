"""Allocation: the smallest number, address or MAC that is free. The same book gives the same, and nothing is remembered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable

from calabash.model.addresses import Address, Network
from calabash.model.errors import CalabashError, Reason
from calabash.net.addresses.derived import PORTS_PER_VPC_EVER, port_mac


def free_number(taken: Iterable[int], most: int, what: str) -> int:
    """The smallest of 1..``most`` that is not taken. Raises CalabashError where all are; ``what`` needs it."""
    used = set(taken)
    for number in range(1, most + 1):
        if number not in used:
            return number
    raise CalabashError(
        f"{what}: all {most} numbers for such are in use", reason=Reason.NO_CAPACITY, hint="delete what is not needed"
    )


def number_of(asked: int, was: int, taken: Collection[int], most: int, whose: str) -> int:
    """The number of an object: as asked for, as it was, or the smallest free. Raises CalabashError where it is taken."""
    if asked and asked != was:
        if not 1 <= asked <= most or asked in taken:
            raise CalabashError(
                f"{whose}: number {asked} is taken or not between 1 and {most}",
                reason=Reason.CONFLICT,
                hint="leave the number out, and one is chosen",
            )
        return asked
    return was or free_number(taken, most, whose)


def free_address(network: Network, taken: Callable[[int], bool], whose: str) -> Address:
    """The smallest address of ``network`` that a station can have. Raises CalabashError where there is none."""
    first, last = usable(network)
    for number in range(first, last + 1):
        if not taken(number):
            return network[number - int(network.network_address)]
    raise CalabashError(
        f"{whose}: all {last - first + 1} addresses of {network} are taken",
        reason=Reason.NO_CAPACITY,
        hint="delete what is not needed, or use another range",
    )


def usable(network: Network) -> tuple[int, int]:
    """First and last address of a range that a station can have: not the network's own, of IPv4 not the last."""
    first, last = int(network.network_address), int(network.broadcast_address)
    return first + 1, last - 1 if network.version == 4 else last


def check_station(address: Address, network: Network, whose: str) -> None:
    """Raises CalabashError where no station of ``network`` can have the address."""
    if address not in network:
        raise CalabashError(f"{whose}: {address} is not in {network}", hint="leave the address out, and one is chosen")
    first, last = usable(network)
    if not first <= int(address) <= last:
        use = "network's own" if int(address) < first else "broadcast"
        raise CalabashError(
            f"{whose}: {address} is the {use} address of {network}", hint="leave the address out, and one is chosen"
        )


def free_mac(vpc_number: int, taken: Container[str], ports: int) -> str:
    """A MAC for the next of ``ports`` ports of a VPC, all of which have one in ``taken``."""
    for step in range(PORTS_PER_VPC_EVER):
        mac = port_mac(vpc_number, (ports + step) % PORTS_PER_VPC_EVER + 1)
        if mac not in taken:
            return mac
    raise CalabashError("all MACs of the VPC are taken", reason=Reason.NO_CAPACITY)
