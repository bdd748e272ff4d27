"""Message types of request bodies and query parameters, with their bounds, and functions that decode and check them."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from calabash.api import endpoints
from calabash.model.compute import with_compute
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.names import NAME_HINT, NAME_PATTERN
from calabash.model.request import DEFAULT_QUEUE, KEEP_S_MAX, ComputePolicy, GpuRequest, Isolation, ModeName, Selector

BODY_BYTES_MAX = 64 * 1024
LARGE_BODY_BYTES_MAX = 1 << 20  # for requests about many objects
_LARGE = frozenset({endpoints.APPLY_NETWORKS.path, endpoints.REPORT_NETWORK_STATUS.path})
WAIT_S_MAX = 7 * 86_400.0
RUN_TIME_S_MAX = 366 * 86_400.0
PAGE_MAX = 1000

_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LOGIN = re.compile(r"[A-Za-z_][A-Za-z0-9._@-]{0,62}")
PATTERN_HINTS: dict[str, str] = {}  # description for people, by the pattern as it is quoted in messages of msgspec

Cores = Annotated[
    int,
    Meta(
        ge=1,
        le=100,
        description="compute share per device in percent; if it is left out and memory is given, the policy is `best-effort`",
    ),
]
Policy = Annotated[
    ComputePolicy,
    Meta(
        description="meaning of the compute share; left out: `best-effort` if memory is given and `cores` is not, otherwise"
        " `fixed`"
    ),
]


def with_pattern(pattern: str, hint: str, **more: Any) -> Meta:
    """Return the constraint of a text with a pattern; ``hint`` describes the pattern in error messages."""
    PATTERN_HINTS[repr(pattern)] = hint
    return Meta(pattern=pattern, **more)


_LOGIN_HINT = "1 to 128 letters, digits and ._@-, a letter, digit or _ first"
Name = Annotated[str, with_pattern(NAME_PATTERN, NAME_HINT)]
OptionalName = Annotated[str, with_pattern(rf"^\Z|{NAME_PATTERN}", NAME_HINT)]
Amount = Annotated[float, Meta(ge=0, le=1_000_000)]
# A login or group name: useradd's rules, and numbers for users without a name.
Login = Annotated[str, with_pattern(r"^[A-Za-z0-9_][A-Za-z0-9._@-]{0,126}[$]?\Z", _LOGIN_HINT)]
Logins = Annotated[list[Login], Meta(max_length=1000)]
New = Annotated[
    bool, Meta(description="true: create it, 409 if it exists; false: change it, 404 if it does not; left out: either")
]
Shape = TypeVar("Shape", bound=msgspec.Struct)


class AllocationRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request for a slice."""

    gpus: Annotated[int, Meta(ge=1, le=64, description="number of devices; each gives the same amounts")] = 1
    memory_mib: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=1 << 40,
                description="device memory per device; left out: the whole device, or the same fraction as of the compute",
            ),
        ]
        | None
    ) = None
    spill_mib: Annotated[
        int,
        Meta(ge=0, le=1 << 40, description="how much of the memory may be in host memory, where that is allowed"),
    ] = 0
    cores: Cores | None = None
    mode: Annotated[
        OptionalName,
        Meta(
            description="`exclusive`, `vgpu`, `brokered`, `mps`, `timeslice`, `mig`, `passthrough`; empty: decided by the"
            " amounts"
        ),
    ] = ""
    mig: Annotated[
        str,
        Meta(
            max_length=32,
            description="MIG profile of a GPU instance (`1g.10gb`) or compute instance (`1c.3g.40gb`), instead of memory, cores"
            " and mode",
        ),
    ] = ""
    vf: Annotated[
        str,
        Meta(
            max_length=64,
            description="profile of a virtual function for a virtual machine, instead of memory; implies mode `passthrough`",
        ),
    ] = ""
    standing: Annotated[
        bool,
        Meta(
            description="the allocation is kept until it is given back, also without a local program: for virtual machines in"
            " mode `passthrough`, and for workers in mode `brokered` that outlive the requesting process; administrators only"
        ),
    ] = False
    keep_s: Annotated[
        float,
        Meta(
            ge=0,
            le=KEEP_S_MAX,
            description="seconds without a renewal after which a standing allocation ends; 0: it does not end by itself",
        ),
    ] = 0.0
    uuids: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=128)]],
        Meta(max_length=64, description="acceptable devices; empty: any"),
    ] = []
    isolation: Annotated[
        OptionalName,
        Meta(description="least isolation level: `cooperative`, `brokered`, `hardware`"),
    ] = ""
    policy: Policy | None = None
    tenant: Annotated[
        OptionalName, Meta(description="tenant on whose account the request is; empty or `default`: the user's own")
    ] = ""
    project: Annotated[
        OptionalName, Meta(description="project of the tenant; empty: decided by the queue, or `default`")
    ] = ""
    queue: Annotated[
        OptionalName,
        Meta(description="queue of the request; empty or `default`: the queue of the tenant, if it has one"),
    ] = DEFAULT_QUEUE
    priority: Annotated[
        int, Meta(ge=-1000, le=1000, description="requests with a larger priority are scheduled first in their queue")
    ] = 0
    gang: Annotated[OptionalName, Meta(description="name of the gang, whose members start together or not at all")] = ""
    gang_size: Annotated[
        int, Meta(ge=1, le=100_000, description="number of members without which the gang does not start")
    ] = 1
    models: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=128)]],
        Meta(max_length=64, description="acceptable device models, as substrings of their names; empty: any"),
    ] = []
    command: Annotated[
        list[str],
        Meta(max_length=16_384, description="command line for people; the journal keeps the first 2048 characters"),
    ] = []
    run_time_s: Annotated[
        float,
        Meta(
            ge=0,
            le=RUN_TIME_S_MAX,
            description="expected run time; the request may use reserved devices if it ends before they are needed",
        ),
    ] = 0.0
    on_fault: Annotated[
        str,
        Meta(
            pattern=r"^(SIGTERM|SIGUSR1)?\Z",
            description="signal that the programs get if one of their devices fails: SIGTERM or SIGUSR1; empty: none",
        ),
    ] = ""
    wait_s: Annotated[
        float,
        Meta(
            ge=0,
            le=WAIT_S_MAX,
            description="seconds to wait for free devices; closing the connection withdraws the request",
        ),
    ] = 0.0
    ports: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=128)]],
        Meta(
            max_length=8,
            description="ports of tenant networks, `VPC/SUBNET/PORT`; the program has these and no other network interfaces",
        ),
    ] = []
    enter: Annotated[
        bool,
        Meta(
            description="the requesting process is the program: it is a member of the allocation before the reply is sent, with"
            " state `running`; if the request has ports, the reply has `door` instead"
        ),
    ] = False

    def request(self, *, tenant: str, queue: str) -> GpuRequest:
        """Return the request in the form in which the scheduler uses it. Raises CalabashError(BAD_REQUEST).

        Args:
            tenant: the tenant that pays for the request.
            queue: the queue in which it waits.
        """
        if self.gang_size > 1 and not self.gang:
            raise CalabashError(f"gang size {self.gang_size} needs a gang", hint="name the gang with --gang")
        request = GpuRequest(
            count=self.gpus,
            memory_mib=self.memory_mib,
            spill_mib=self.spill_mib,
            mode=ModeName(self.mode),
            mig=self.mig,
            vf=self.vf,
            standing=self.standing,
            keep_s=self.keep_s,
            isolation=_isolation(self.isolation),
            priority=self.priority,
            tenant=tenant,
            queue=queue,
            gang=self.gang,
            gang_size=self.gang_size,
            ports=tuple(self.ports),
            selector=Selector(models=tuple(self.models), uuids=tuple(DeviceUuid(uuid) for uuid in self.uuids)),
            run_time_s=self.run_time_s,
            on_fault=self.on_fault,
        )
        return with_compute(request, core_percent=self.cores, policy=self.policy)


class StartedReport(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Report that the program of an allocation is about to run."""

    pid: Annotated[int, Meta(ge=1, le=1 << 31, description="process ID in the PID namespace of the pool")]


class QueueSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Settings of a queue to create or change. A setting that is left out keeps its value, or gets its default."""

    new: New | UnsetType = UNSET
    parent: Annotated[OptionalName, Meta(description="parent queue; empty: none")] | UnsetType = UNSET
    guarantee: Annotated[Amount, Meta(description="guaranteed devices")] | UnsetType = UNSET
    deserved: Annotated[Amount, Meta(description="former name of guarantee")] | UnsetType = UNSET
    limit: Annotated[Amount, Meta(description="most devices; null: no limit")] | UnsetType | None = UNSET
    weight: Annotated[Amount, Meta(description="share of devices over quota")] | UnsetType = UNSET
    users: Annotated[Logins, Meta(description="login names that may use the queue, all")] | UnsetType = UNSET
    groups: Annotated[Logins, Meta(description="groups whose members may use the queue; replaces the list")] | (
        UnsetType
    ) = UNSET
    add_users: Annotated[Logins, Meta(description="login names to add")] = []
    remove_users: Annotated[Logins, Meta(description="login names to remove")] = []
    add_groups: Annotated[Logins, Meta(description="groups to add")] = []
    remove_groups: Annotated[Logins, Meta(description="groups to remove")] = []

    @property
    def guaranteed(self) -> float | UnsetType:
        """The guarantee by either name; UNSET without one."""
        return self.deserved if isinstance(self.guarantee, UnsetType) else self.guarantee


class Shutdown(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request to stop the pool."""

    force: Annotated[bool, Meta(description="end running programs first")] = False
    keep_programs: Annotated[bool, Meta(description="programs continue; the next pool takes them over")] = False


class Nothing(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Empty body."""


class Page(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Query parameters that select a page of a list."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="most items; a large reply has fewer")] = PAGE_MAX
    after: Annotated[str, Meta(max_length=128, description="`next` of the previous page")] = ""


class AllocationPage(Page, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Query parameters that select allocations."""

    all: Annotated[bool, Meta(description="also the last `limit` allocations that ended, before the others")] = False
    ended: Annotated[bool, Meta(description="only allocations that ended, newest first")] = False
    mine: Annotated[
        bool,
        Meta(
            description="only allocations and requests of the requesting process; a request with a token has no process"
        ),
    ] = False


class EventPage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Query parameters that select events."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="most items")] = PAGE_MAX
    after: Annotated[int, Meta(ge=0, lt=10**18, description="ID of the last known event; 0: begin with the oldest")] = 0


class Release(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Query parameters of the release of an allocation."""

    force: Annotated[bool, Meta(description="end its programs: SIGTERM, and SIGKILL after five seconds")] = False


def _isolation(word: str) -> Isolation:
    levels = {level.name.lower(): level for level in Isolation}
    if word and word not in levels:
        raise CalabashError(f"isolation {word!r} is not known", hint=f"use one of: {', '.join(levels)}")
    return levels.get(word, Isolation.COOPERATIVE)


def body_bytes_max(path: str) -> int:
    """Return the greatest permitted size of the body of a request to a path, in bytes."""
    return LARGE_BODY_BYTES_MAX if path in _LARGE else BODY_BYTES_MAX


_REGEX = re.compile(r"Expected `str` matching regex (?P<pattern>'.*'|\".*\") - at `\$\.?(?P<path>[^`]*)`")


def _refusal(what: str, error: Exception, given: Any) -> CalabashError:
    """Return the error for a body or query that cannot be decoded.

    For a text that does not match its pattern, the error has the value and the hint of the pattern.

    Args:
        what: name of the message in the error text.
        given: the decoded values, or a function that returns them.
    """
    match = _REGEX.fullmatch(str(error))
    hint = PATTERN_HINTS.get(match["pattern"]) if match else None
    if match is None or hint is None:
        return CalabashError(f"{what} is not understood: {error}", hint="see the API reference")
    path = match["path"]
    value: Any = given() if callable(given) else given
    for step in re.findall(r"[^.\[\]]+", path):
        if isinstance(value, list):
            value = value[int(step)] if step.isdigit() and int(step) < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    field = re.sub(r"\[[^\]]*\]", "", path).replace("_", " ")
    wrong = f"{field} {value[:80]!r}" if isinstance(value, str) else f"one of {field}"
    return CalabashError(f"{wrong} is not usable", hint=hint)


def decode(body: bytes, shape: type[Shape]) -> Shape:
    """Decode a JSON body; an empty body is an empty object. Raises CalabashError(BAD_REQUEST) that names the field."""
    try:
        return msgspec.json.decode(body or b"{}", type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal("the request body", error, lambda: msgspec.json.decode(body)) from None


def decode_query(pairs: dict[str, Any], shape: type[Shape]) -> Shape:
    """Convert query parameters; ``1`` and ``true`` are true. Raises CalabashError(BAD_REQUEST) that names the field."""
    try:
        return msgspec.convert(pairs, shape, strict=False)
    except msgspec.ValidationError as error:
        raise _refusal("the query", error, pairs) from None


def checked_name(text: str, *, what: str) -> str:
    """Return a name from the path of a request if it is valid. Raises CalabashError(BAD_REQUEST).

    Args:
        what: kind of the object, for the error message.
    """
    if re.fullmatch(NAME_PATTERN, text) is None:
        raise CalabashError(f"{what} name {text!r} is not usable", hint=NAME_HINT)
    return text


def checked_part(text: str, *, what: str) -> str:
    """Return a name without slashes, of at most 63 characters, if it is valid. Raises CalabashError(BAD_REQUEST).

    Args:
        what: kind of the object, for the error message.
    """
    if _PART.fullmatch(text) is None:
        raise CalabashError(
            f"{what} name {text[:128]!r} is not usable", hint="1 to 63 letters, digits and ._-, a letter or digit first"
        )
    return text


def checked_login(text: str) -> str:
    """Return a user name from the path of a request if it is valid. Raises CalabashError(BAD_REQUEST)."""
    if _LOGIN.fullmatch(text) is None:
        raise CalabashError(
            f"user name {text[:128]!r} is not usable", hint="1 to 63 letters, digits and ._@-, a letter first"
        )
    return text


def checked_id(text: str) -> str:
    """Return an allocation ID from the path of a request if it is valid.

    Raises CalabashError(NOT_FOUND), as for an unknown allocation.
    """
    if _ID.fullmatch(text) is None:
        raise CalabashError(
            f"there is no allocation {text[:80]!r} held or waiting", reason=Reason.NOT_FOUND, hint="see `calabash ps`"
        )
    return text
