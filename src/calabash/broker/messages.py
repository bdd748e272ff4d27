"""Requests and replies of the remote-device server's API. Requests with unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from calabash.api.requests import RUN_TIME_S_MAX, WAIT_S_MAX
from calabash.broker.filters import FILTER_CHARACTERS_MAX
from calabash.model.compute import with_compute
from calabash.model.errors import CalabashError
from calabash.model.request import GpuRequest, Isolation, ModeName

BODY_BYTES_MAX = 64 * 1024
IDLE_S_MAX = 30 * 86_400.0

MODE = ModeName("brokered")

Shape = TypeVar("Shape", bound=msgspec.Struct)


class LeaseOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request for a lease.

    Args:
        gpus: number of devices.
        memory_mib: memory of each device. None requests ``cores`` percent of the memory, or all of it without
            ``cores``.
        cores: compute share of each device in percent. None with ``memory_mib`` requests best-effort compute.
        filters: device filters, see :mod:`calabash.broker.filters`.
        models: substrings of model names, of which a device must have at least one; empty accepts every model.
        command: the program and its arguments, for lists of leases.
        run_time_s: expected run time, or 0 if it is unknown.
        wait_s: longest time to wait for free devices.
        idle_s: 0 for a lease that the client renews within the server's grace period. A larger value makes the lease a
            reservation, which the server keeps for this time without a renewal.
    """

    gpus: Annotated[int, Meta(ge=1, le=64)] = 1
    memory_mib: Annotated[int, Meta(ge=1, le=1 << 40)] | None = None
    cores: Annotated[int, Meta(ge=1, le=100)] | None = None
    filters: Annotated[list[Annotated[str, Meta(max_length=FILTER_CHARACTERS_MAX)]], Meta(max_length=16)] = []
    models: Annotated[list[Annotated[str, Meta(min_length=1, max_length=128)]], Meta(max_length=64)] = []
    command: Annotated[list[str], Meta(max_length=16_384)] = []
    run_time_s: Annotated[float, Meta(ge=0, le=RUN_TIME_S_MAX)] = 0.0
    wait_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX)] = 0.0
    idle_s: Annotated[float, Meta(ge=0, le=IDLE_S_MAX)] = 0.0

    @property
    def request(self) -> GpuRequest:
        """Return the requested amounts in the form of the pool's API."""
        amounts = GpuRequest(count=self.gpus, memory_mib=self.memory_mib, mode=MODE, isolation=Isolation.BROKERED)
        return with_compute(amounts, core_percent=self.cores, policy=None)


class DrainServer(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request to refuse new leases (``draining``) or to accept them again."""

    draining: bool


class StopServer(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request to stop the server.

    The request is refused while leases are held, unless ``force`` is True: the leases are then ended first.
    """

    force: bool = False


class RemoteCard(msgspec.Struct, kw_only=True, frozen=True):
    """Device of a server. ``leases`` are the IDs of the leases that use it."""

    uuid: str
    index: int
    model: str
    memory_mib: int
    memory_free_mib: int
    memory_used_mib: int
    cores_free_percent: int
    utilization_percent: int
    compute_capability: str
    health: str
    leases: list[str]


class ServerView(msgspec.Struct, kw_only=True, frozen=True):
    """Server with its devices and their free capacity.

    ``leases`` is the number of leases that are held. While ``draining`` is True, new leases are refused.
    """

    name: str
    version: str
    pid: int
    driver: str
    draining: bool
    grace_s: float
    leases: int
    cards: list[RemoteCard]


class SessionView(msgspec.Struct, kw_only=True, frozen=True):
    """Connection of a program to the server.

    Args:
        id: first digits of the session ID.
        peer: address of the program.
        begun: start of the session in seconds since the epoch.
    """

    id: str
    peer: str
    begun: float


class LeaseView(msgspec.Struct, kw_only=True, frozen=True):
    """Lease as the API shows it, without its key.

    Args:
        id: ID of the lease.
        token: name of the token that holds the lease.
        allocation: ID of the allocation in the pool.
        gpus: number of devices.
        memory_mib: memory, summed over the devices.
        cores: compute share of each device in percent.
        devices: UUIDs of the devices.
        command: the program and its arguments.
        made_at: time of the grant in seconds since the epoch.
        ends_in_s: seconds until the lease ends unless it is renewed.
        reserved: True for a reservation.
        processes: number of server processes of the lease, including the parent of its workers.
        sessions: connections of programs.
    """

    id: str
    token: str
    allocation: str
    gpus: int
    memory_mib: int
    cores: int
    devices: list[str]
    command: list[str]
    made_at: float
    ends_in_s: float
    reserved: bool
    processes: int
    sessions: list[SessionView]


class LeaseViews(msgspec.Struct, kw_only=True, frozen=True):
    """List of leases."""

    items: list[LeaseView]


class LeaseGrant(msgspec.Struct, kw_only=True, frozen=True):
    """Reply to a granted request. The secret key of the lease is in no other reply.

    Args:
        id: ID of the lease.
        key: secret with which a program proves that it may use the lease.
        grace_s: seconds for which the server keeps the lease without a renewal.
        lease: the lease.
        warnings: texts for the user.
    """

    id: str
    key: str
    grace_s: float
    lease: LeaseView
    warnings: list[str] = []

    def __repr__(self) -> str:
        return f"LeaseGrant(id={self.id!r})"


class LeaseEnd(msgspec.Struct, kw_only=True, frozen=True):
    """Reply to a renewal or release: seconds until the lease ends unless it is renewed again."""

    id: str
    ends_in_s: float


class ServerFailure(msgspec.Struct, kw_only=True, frozen=True):
    """Reply with a status of 400 or above, in the form of the pool's API."""

    reason: str
    message: str
    hint: str = ""


def decode_body(body: bytes, shape: type[Shape]) -> Shape:
    """Decode the JSON body of a request.

    Raises:
        CalabashError: BAD_REQUEST with the name of the invalid field.
    """
    try:
        return msgspec.json.decode(body or b"{}", type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CalabashError(
            f"the request is not understood: {error}", hint="check that client and server have the same version"
        ) from None
