"""Message types of usage records that the agent of a node sends to the server of its cluster.

A batch continues where the previous one ended: ``after`` is the number before its first record. The numbers of a node's
database, which is identified by ``epoch``, increase; they have gaps where adjacent records were merged.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.model.versions import USAGE_BATCH

USAGE_PATH = "/v1/nodes/usage"
AUDIENCE = "calabash-usage"
ENTRIES_MAX = 500
BATCH_BYTES_MAX = 1 << 20

_Number = Annotated[int, Meta(ge=0, lt=2**32)]
_Word = Annotated[str, Meta(max_length=128)]
_Moment = Annotated[float, Meta(ge=0, le=1e11)]
_Amount = Annotated[float, Meta(ge=0, le=1e18)]


class UsageEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Usage record of one slice.

    ``namespace`` and ``pod`` identify the pod of the container. ``queue`` is the queue that the pod names, or "default". Times
    are seconds since 1970 by the clock of the node.
    """

    number: Annotated[int, Meta(ge=1, lt=2**32)]
    allocation: Annotated[str, Meta(min_length=1, max_length=64)]
    namespace: Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")]
    pod: _Word
    queue: _Word
    device: Annotated[str, Meta(min_length=1, max_length=64)]
    device_model: _Word
    mode: Annotated[str, Meta(max_length=32)]
    preemptible: bool
    from_s: _Moment
    to_s: _Moment
    memory_mib: Annotated[int, Meta(ge=0, le=2**31)]
    core_percent: Annotated[int, Meta(ge=0, le=100)]
    allocated_gpu_s: _Amount
    used_gpu_s: _Amount
    idle_s: _Amount
    memory_mib_s: _Amount
    uncertain_s: _Amount = 0.0


class UsageBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Usage records in the order of their numbers.

    ``lost``: the records between the last one that the server has and ``after`` are lost.
    """

    version: int = USAGE_BATCH.newest
    epoch: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    after: _Number
    lost: bool = False
    entries: Annotated[tuple[UsageEntry, ...], Meta(max_length=ENTRIES_MAX)]


class UsageTaken(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Acknowledgement: the records up to number ``last`` are committed.

    If ``last`` is below ``after`` of the batch, the records between them must be sent first.
    """

    last: _Number


class UsageRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Error reply: no record of the batch was accepted."""

    error: _Word
    message: Annotated[str, Meta(max_length=1024)]
