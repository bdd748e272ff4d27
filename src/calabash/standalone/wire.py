"""The shapes of the HTTP API: strict where they come in, plain where they go out."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from calabash.model.errors import CalabashError
from calabash.model.names import NAME_PATTERN
from calabash.model.request import DEFAULT_QUEUE, DEFAULT_TENANT, ComputePolicy, GpuRequest, ModeName, Selector

BODY_BYTES_MAX = 64 * 1024
WAIT_S_MAX = 7 * 86_400.0
RUN_TIME_S_MAX = 366 * 86_400.0

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
OptionalName = Annotated[str, Meta(pattern=rf"^\Z|{NAME_PATTERN}")]
Amount = Annotated[float, Meta(ge=0, le=1_000_000)]
QUEUE_NAME = re.compile(NAME_PATTERN)


class Ask(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """POST /v1/allocations."""

    gpus: Annotated[int, Meta(ge=1, le=64)] = 1
    memory_mib: Annotated[int, Meta(ge=1, le=1 << 40)] | None = None
    cores: Annotated[int, Meta(ge=1, le=100)] = 100
    mode: OptionalName = ""
    policy: ComputePolicy = ComputePolicy.FIXED
    tenant: Name = DEFAULT_TENANT
    queue: Name = DEFAULT_QUEUE
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    gang: OptionalName = ""
    gang_size: Annotated[int, Meta(ge=1, le=100_000)] = 1
    models: Annotated[list[Annotated[str, Meta(min_length=1, max_length=128)]], Meta(max_length=64)] = []
    command: Annotated[list[str], Meta(max_length=16_384)] = []
    run_time_s: Annotated[float, Meta(ge=0, le=RUN_TIME_S_MAX)] = 0.0
    wait_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX)] = 0.0

    def request(self) -> GpuRequest:
        """As the core knows it."""
        if self.gang_size > 1 and not self.gang:
            raise CalabashError(f"gang size {self.gang_size} without a gang", hint="name the gang with --gang")
        return GpuRequest(
            count=self.gpus,
            memory_mib=self.memory_mib,
            core_percent=self.cores,
            mode=ModeName(self.mode),
            policy=self.policy,
            priority=self.priority,
            tenant=self.tenant,
            queue=self.queue,
            gang=self.gang,
            gang_size=self.gang_size,
            selector=Selector(models=tuple(self.models)),
            run_time_s=self.run_time_s,
        )


class Started(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """POST /v1/allocations/{id}/started."""

    pid: Annotated[int, Meta(ge=1, le=1 << 31)]


class QueueBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """PUT /v1/queues/{name}."""

    parent: OptionalName = ""
    deserved: Amount = 0.0
    limit: Amount | None = None
    weight: Amount = 1.0


class Shutdown(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """POST /v1/shutdown."""

    force: bool = False


def decode(body: bytes, shape: Any) -> Any:
    """The body as that shape. Raises CalabashError(BAD_REQUEST) that names the field."""
    try:
        return msgspec.json.decode(body or b"{}", type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CalabashError(f"the request body is not understood: {error}", hint="see the API reference") from None
