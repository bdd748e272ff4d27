"""Membership of a pod in the gang of its owner, stored as JSON in an annotation.

Admission writes the annotation. For a pod that requests devices, it only names owner and role for explanations, because
the gang is in its request as well (``pod_request``). For a pod without devices, it is all that the planner knows.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.kubernetes.objects.names import GANG_MEMBER
from calabash.kubernetes.pod_request import GangSource
from calabash.model.errors import CalabashError
from calabash.model.names import NAME_PATTERN
from calabash.model.stated_version import require_stated
from calabash.model.versions import GANG_MEMBERSHIP

MEMBER_BYTES_MAX = 2048
_Text = Annotated[str, Meta(max_length=330, pattern=r"\A[A-Za-z0-9._/-]*\Z")]


_Level = Annotated[str, Meta(max_length=317, pattern=r"\A[A-Za-z0-9._/-]*\Z")]


class MemberTopology(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Levels of the network of which one domain holds members of a gang; see ``sched.GangTopology``.

    Args:
        required, preferred, slice_level: keys of node labels; "" for none.
        slice_size: number of members of a slice.
        group: name of the members to which this applies; "" for the whole gang.
        rank: number of the pod among these members; None if it is not known.
    """

    required: _Level = ""
    preferred: _Level = ""
    slice_level: _Level = ""
    slice_size: Annotated[int, Meta(ge=0, le=100_000)] = 0
    group: _Text = ""
    rank: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None


class GangMember(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Membership of a pod. Unknown fields are ignored.

    Args:
        gang: name of the gang, unique in the namespace.
        size: number of members that start together. If the source is an object, that object has the number.
        source: source of the size.
        owner: kind and name of the owner, such as ``JobSet/train``.
        role: name of the role.
        rank: number of the pod within its role, as its label has it; "" if it has none.
        topology: levels of the network that the owner requests; None for none. Planners of version 0.1 ignore it.
    """

    gang: Annotated[str, Meta(pattern=NAME_PATTERN)]
    size: Annotated[int, Meta(ge=1, le=100_000)] = 1
    source: GangSource = GangSource.ANNOTATION
    owner: _Text = ""
    role: _Text = ""
    rank: _Text = ""
    topology: MemberTopology | None = None

    @property
    def described(self) -> str:
        """Return owner and role in words, such as ``JobSet train, role slice``; "" if there is no owner."""
        kind, _, name = self.owner.partition("/")
        role = f", role {self.role}" if self.role else ""
        rank = f" {self.rank}" if self.role and self.rank else ""
        return f"{kind} {name}{role}{rank}" if name else ""


class _Written(GangMember, frozen=True, omit_defaults=True, kw_only=True):
    version: int


# Created at import: msgspec crashes when two threads create the first decoder of a type at the same time.
_DECODER = msgspec.json.Decoder(_Written)


def write_member(member: GangMember) -> str:
    """Return the JSON text of the annotation."""
    fields = {name: getattr(member, name) for name in GangMember.__struct_fields__}
    return msgspec.json.encode(_Written(version=GANG_MEMBERSHIP.newest, **fields)).decode()


def read_member(text: str) -> GangMember:
    """Decode the annotation.

    Raises:
        CalabashError: VERSION_MISMATCH if it has an unsupported version, BAD_REQUEST if ``write_member`` cannot have
            written it.
    """
    if len(text) > MEMBER_BYTES_MAX:
        raise _bad(f"{len(text)} bytes, at most {MEMBER_BYTES_MAX}")
    try:
        found = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        require_stated(GANG_MEMBERSHIP, text, f"annotation {GANG_MEMBER}")
        raise _bad(str(error)) from error
    GANG_MEMBERSHIP.require(found.version, f"annotation {GANG_MEMBER}")
    if found.source is GangSource.NONE:
        raise _bad("it has no source")
    return GangMember(**{name: getattr(found, name) for name in GangMember.__struct_fields__})


def _bad(what: str) -> CalabashError:
    return CalabashError(
        f"annotation {GANG_MEMBER} cannot be read: {what}",
        hint="only admission writes it; create the pod again without it",
    )
