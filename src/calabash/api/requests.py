"""What the API is asked: bodies and query parameters, with every bound in the type."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from calabash.api.compute import Cores, Policy
from calabash.model.compute import with_compute
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.names import NAME_HINT, NAME_PATTERN
from calabash.model.request import DEFAULT_QUEUE, KEEP_S_MAX, GpuRequest, Isolation, ModeName, Selector

BODY_BYTES_MAX = 64 * 1024
LARGE_BODY_BYTES_MAX = 1 << 20  # of what names many things at once
_LARGE = frozenset({"/v1/networks/apply", "/v1/networks/status"})
WAIT_S_MAX = 7 * 86_400.0
RUN_TIME_S_MAX = 366 * 86_400.0
PAGE_MAX = 1000

_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LOGIN = re.compile(r"[A-Za-z_][A-Za-z0-9._@-]{0,62}")
HOW_WRITTEN: dict[str, str] = {}  # the form of a text for people, by the pattern as messages of msgspec have it


def written(pattern: str, how: str, **more: Any) -> Meta:
    """Return the constraint for a text of that pattern; ``how`` says for people what it looks like."""
    HOW_WRITTEN[repr(pattern)] = how
    return Meta(pattern=pattern, **more)


_LOGIN_HINT = "1 to 128 letters, digits and ._@-, a letter, digit or _ first"
Name = Annotated[str, written(NAME_PATTERN, NAME_HINT)]
OptionalName = Annotated[str, written(rf"^\Z|{NAME_PATTERN}", NAME_HINT)]
Amount = Annotated[float, Meta(ge=0, le=1_000_000)]
# A login or group name: useradd's rules, and numbers for users without a name.
Login = Annotated[str, written(r"^[A-Za-z0-9_][A-Za-z0-9._@-]{0,126}[$]?\Z", _LOGIN_HINT)]
Logins = Annotated[list[Login], Meta(max_length=1000)]
New = Annotated[
    bool, Meta(description="true: create it, 409 if it exists; false: change it, 404 if it does not; left out: either")
]
Shape = TypeVar("Shape", bound=msgspec.Struct)


class AllocationRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A slice is asked for."""

    gpus: Annotated[int, Meta(ge=1, le=64, description="devices wanted; each carries the same amounts")] = 1
    memory_mib: (
        Annotated[
            int,
            Meta(ge=1, le=1 << 40, description="device memory per device; the whole card, or as much as of compute"),
        ]
        | None
    ) = None
    spill_mib: Annotated[
        int,
        Meta(ge=0, le=1 << 40, description="part of the memory that need not lie on the device, where that is allowed"),
    ] = 0
    cores: Cores | None = None
    mode: Annotated[
        OptionalName,
        Meta(
            description="`exclusive`, `vgpu`, `brokered`, `mps`, `timeslice`, `mig`, `passthrough`; empty: what the amounts say"
        ),
    ] = ""
    mig: Annotated[
        str,
        Meta(
            max_length=32,
            description="a MIG profile such as `1g.10gb`, or a part such as `1c.3g.40gb`, instead of memory, cores and mode",
        ),
    ] = ""
    vf: Annotated[
        str,
        Meta(
            max_length=64, description="a part of a card for a virtual machine, instead of memory; mode `passthrough`"
        ),
    ] = ""
    standing: Annotated[
        bool,
        Meta(
            description="it is kept until it is given back, without a program of this machine: for virtual machines, in mode"
            " `passthrough`, and for workers that outlive who asked, in mode `brokered`; administrators"
        ),
    ] = False
    keep_s: Annotated[
        float,
        Meta(
            ge=0,
            le=KEEP_S_MAX,
            description="of one that stands: it ends when nobody has said for so long that it is needed; 0: never by itself",
        ),
    ] = 0.0
    uuids: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=128)]],
        Meta(max_length=64, description="acceptable devices; empty: any"),
    ] = []
    isolation: Annotated[
        OptionalName,
        Meta(description="how strongly tenants are kept apart at least: `cooperative`, `brokered`, `hardware`"),
    ] = ""
    policy: Policy | None = None
    tenant: Annotated[OptionalName, Meta(description="on whose account; empty or `default`: the user's own")] = ""
    project: Annotated[
        OptionalName, Meta(description="the part of the tenant; empty: the queue says, or `default`")
    ] = ""
    queue: Annotated[
        OptionalName, Meta(description="the queue it waits in; empty or `default`: the tenant's, where it has one")
    ] = DEFAULT_QUEUE
    priority: Annotated[int, Meta(ge=-1000, le=1000, description="larger goes first in its queue")] = 0
    gang: Annotated[OptionalName, Meta(description="members of a gang start together or not at all")] = ""
    gang_size: Annotated[int, Meta(ge=1, le=100_000, description="members that the gang needs to start")] = 1
    models: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=128)]],
        Meta(max_length=64, description="acceptable device models, whole or a part of the name; empty: any"),
    ] = []
    command: Annotated[
        list[str], Meta(max_length=16_384, description="for people; the journal keeps its first 2048 characters")
    ] = []
    run_time_s: Annotated[
        float,
        Meta(
            ge=0, le=RUN_TIME_S_MAX, description="expected run time; lets it pass a reservation that it does not delay"
        ),
    ] = 0.0
    on_fault: Annotated[
        str,
        Meta(
            pattern=r"^(SIGTERM|SIGUSR1)?\Z",
            description="the signal that its programs get when a device of theirs fails; SIGTERM or SIGUSR1; empty: none",
        ),
    ] = ""
    wait_s: Annotated[
        float, Meta(ge=0, le=WAIT_S_MAX, description="how long to wait for room; hanging up withdraws the request")
    ] = 0.0
    ports: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=128)]],
        Meta(
            max_length=8,
            description="of tenant networks, `VPC/SUBNET/PORT`: its program has these and no other network",
        ),
    ] = []
    enter: Annotated[
        bool,
        Meta(
            description="the asking process is the program: it is made a member of the allocation before the answer,"
            " which then says `running`; with ports the answer names a `door` instead"
        ),
    ] = False

    def request(self, *, tenant: str, queue: str) -> GpuRequest:
        """As the core knows it, on that tenant's account, in that queue."""
        if self.gang_size > 1 and not self.gang:
            raise CalabashError(f"gang size {self.gang_size} without a gang", hint="name the gang with --gang")
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
    """The program of an allocation is about to run."""

    pid: Annotated[int, Meta(ge=1, le=1 << 31, description="process id, as the pool sees it")]


class QueueSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The settings of a queue to create or change; a setting that is left out keeps its value, or has its default."""

    new: New | UnsetType = UNSET
    parent: Annotated[OptionalName, Meta(description="queue that it belongs to; empty: none")] | UnsetType = UNSET
    deserved: Annotated[Amount, Meta(description="devices guaranteed")] | UnsetType = UNSET
    limit: Annotated[Amount, Meta(description="devices at most; null: no limit")] | UnsetType | None = UNSET
    weight: Annotated[Amount, Meta(description="share of what is over quota")] | UnsetType = UNSET
    users: Annotated[Logins, Meta(description="login names that may use it, instead of those before")] | UnsetType = (
        UNSET
    )
    groups: Annotated[Logins, Meta(description="groups whose members may use it, instead of those before")] | (
        UnsetType
    ) = UNSET
    add_users: Annotated[Logins, Meta(description="login names that may use it, too")] = []
    remove_users: Annotated[Logins, Meta(description="login names that may not use it any more")] = []
    add_groups: Annotated[Logins, Meta(description="groups whose members may use it, too")] = []
    remove_groups: Annotated[Logins, Meta(description="groups whose members may not use it any more")] = []


class Shutdown(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The pool is to go down."""

    force: Annotated[bool, Meta(description="end running programs first")] = False


class DrainOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A device is to take nothing new."""

    reason: Annotated[str, Meta(max_length=200, description="why, for those who ask")] = ""
    evict: Annotated[bool, Meta(description="end what runs on it")] = False
    grace_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX, description="how long that may still run")] = 0.0


class DeviceMode(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The sharing mode that a device is kept in."""

    mode: Annotated[Name, Meta(description="`mig`, `vgpu` or another mode: no other is served; `auto`: follows demand")]


class DeviceSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How one device is given out; what is left out stays as it is."""

    replicas: (
        Annotated[int, Meta(ge=0, le=1 << 20, description="tenants that use it in turns; 0: as all devices")] | None
    ) = None
    interval: (
        Annotated[
            str,
            Meta(max_length=32, description="length of turns: `default`, `short`, `medium`, `long`; `auto`: as all"),
        ]
        | None
    ) = None
    spill: (
        Annotated[str, Meta(max_length=32, description="memory beyond it: `on`, `off`; `auto`: as all devices")] | None
    ) = None


class WantedInstance(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A MIG instance of a layout."""

    profile: Annotated[str, Meta(min_length=1, max_length=32, description="its profile, such as `1g.10gb`")]
    start: Annotated[int, Meta(ge=-1, le=63, description="its first memory slice; -1: wherever all fit best")] = -1


class WantedCard(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How one card is to be cut."""

    device: Annotated[str, Meta(min_length=1, max_length=128, description="its number or UUID")]
    instances: Annotated[list[WantedInstance], Meta(max_length=64, description="none: no fixed layout any more")] = []


class MigLayout(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Fixed layouts of idle cards; all are checked before any is changed."""

    cards: Annotated[list[WantedCard], Meta(min_length=1, max_length=64)]
    check: Annotated[bool, Meta(description="change nothing, only say what it would be")] = False


class MigQuestion(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What would happen if these were asked for now, one after the other."""

    profiles: Annotated[list[Annotated[str, Meta(min_length=1, max_length=32)]], Meta(min_length=1, max_length=64)]


class Nothing(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """There is nothing to say."""


class Page(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Which part of a list, in the query string."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="items at most; fewer when the reply grows large")] = (
        PAGE_MAX
    )
    after: Annotated[str, Meta(max_length=128, description="`next` of the page before")] = ""


class AllocationPage(Page, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Which allocations, in the query string."""

    all: Annotated[bool, Meta(description="before the rest, the last `limit` that ended")] = False
    ended: Annotated[bool, Meta(description="only what ended, newest first; pages lead back in time")] = False
    mine: Annotated[
        bool, Meta(description="only what the asking process waits for or is a member of; a token has no process")
    ] = False


class EventPage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Which events, in the query string."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="items at most")] = PAGE_MAX
    after: Annotated[int, Meta(ge=0, lt=10**18, description="id of the last event seen; 0 lists from the oldest")] = 0


class Release(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How to release, in the query string."""

    force: Annotated[bool, Meta(description="end its programs: SIGTERM, and SIGKILL five seconds later")] = False


def _isolation(word: str) -> Isolation:
    levels = {level.name.lower(): level for level in Isolation}
    if word and word not in levels:
        raise CalabashError(f"isolation {word!r} is not known", hint=f"one of: {', '.join(levels)}")
    return levels.get(word, Isolation.COOPERATIVE)


def body_bytes_max(path: str) -> int:
    """The most that a request to that path may carry."""
    return LARGE_BODY_BYTES_MAX if path in _LARGE else BODY_BYTES_MAX


_REGEX = re.compile(r"Expected `str` matching regex (?P<pattern>'.*'|\".*\") - at `\$\.?(?P<path>[^`]*)`")


def _refusal(what: str, error: Exception, given: Any) -> CalabashError:
    """Return the error for a body or query that does not decode; a text of another form is named with its form."""
    match = _REGEX.fullmatch(str(error))
    how = HOW_WRITTEN.get(match["pattern"]) if match else None
    if match is None or how is None:
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
    return CalabashError(f"{wrong} is not usable", hint=how)


def decode(body: bytes, shape: type[Shape]) -> Shape:
    """The body as that shape. Raises CalabashError(BAD_REQUEST) that names the field."""
    try:
        return msgspec.json.decode(body or b"{}", type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal("the request body", error, lambda: msgspec.json.decode(body)) from None


def decode_query(pairs: dict[str, Any], shape: type[Shape]) -> Shape:
    """The query string as that shape; ``1`` and ``true`` are true. Raises CalabashError(BAD_REQUEST)."""
    try:
        return msgspec.convert(pairs, shape, strict=False)
    except msgspec.ValidationError as error:
        raise _refusal("the query", error, pairs) from None


def checked_name(text: str, *, what: str) -> str:
    """A name from a path. Raises CalabashError(BAD_REQUEST)."""
    if re.fullmatch(NAME_PATTERN, text) is None:
        raise CalabashError(f"{what} name {text!r} is not usable", hint=NAME_HINT)
    return text


def checked_part(text: str, *, what: str) -> str:
    """A name without /, at most 63 characters. Raises CalabashError(BAD_REQUEST)."""
    if _PART.fullmatch(text) is None:
        raise CalabashError(
            f"{what} name {text[:128]!r} is not usable", hint="1 to 63 letters, digits and ._-, a letter or digit first"
        )
    return text


def checked_login(text: str) -> str:
    """A user's name from a path. Raises CalabashError(BAD_REQUEST)."""
    if _LOGIN.fullmatch(text) is None:
        raise CalabashError(
            f"user name {text[:128]!r} is not usable", hint="1 to 63 letters, digits and ._@-, a letter first"
        )
    return text


def checked_id(text: str) -> str:
    """An allocation's id from a path. Raises CalabashError(NOT_FOUND): no allocation is called anything else."""
    if _ID.fullmatch(text) is None:
        raise CalabashError(
            f"there is no allocation {text[:80]!r} held or waiting", reason=Reason.NOT_FOUND, hint="see `calabash ps`"
        )
    return text
