"""Validation of driver parameters in claims that were written for NVIDIA's DRA driver.

Such claims can be used with Calabash without a change if their parameters mean the same. A claim of the classes
``gpu.nvidia.com`` and ``mig.nvidia.com`` is a whole card or a MIG instance in both drivers, and containers that share
the claim time-slice the device. The strategy TimeSlicing is therefore accepted. MPS parameters are refused: in NVIDIA's
driver they divide a device among the containers of one claim, in Calabash each claim has a share. A length of time
slices is refused because it is a setting of the node.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from calabash.model.errors import CalabashError, Reason

NVIDIA_DRIVER = "gpu.nvidia.com"
API_VERSIONS = frozenset({"resource.nvidia.com/v1beta1"})
_MESSAGE_MAX = 256  # of a decoder, which quotes the value
_Word = Annotated[str, msgspec.Meta(max_length=64)]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """Base class of the parameters. Unknown fields are refused, as in NVIDIA's driver."""


class NvidiaTurns(_Strict, frozen=True):
    """Length of time slices; ``interval`` is Default, Short, Medium or Long."""

    interval: _Word | None = None


class NvidiaSharing(_Strict, frozen=True):
    """Strategy by which the containers that use a claim share its device: TimeSlicing or MPS."""

    strategy: _Word
    time_slicing_config: NvidiaTurns | None = None
    mps_config: dict[str, Any] | None = None


class NvidiaIommu(_Strict, frozen=True):
    """The kernel interface by which a virtual machine gets its device."""

    backend_policy: _Word
    enable_api_device: bool | None = msgspec.field(name="enableAPIDevice", default=None)


class NvidiaGpuConfig(_Strict, frozen=True):
    """The documents ``GpuConfig`` and ``MigDeviceConfig`` of NVIDIA's driver, for whole cards and for MIG instances."""

    api_version: _Word
    kind: Literal["GpuConfig", "MigDeviceConfig"]
    sharing: NvidiaSharing | None = None


class NvidiaVfioConfig(_Strict, frozen=True):
    """The document ``VfioDeviceConfig`` of NVIDIA's driver, for cards that are passed to virtual machines."""

    api_version: _Word
    kind: Literal["VfioDeviceConfig"]
    iommu: NvidiaIommu | None = None


# Created at import: msgspec crashes when two threads convert to a type for the first time at once.
msgspec.json.Decoder(NvidiaGpuConfig)
msgspec.json.Decoder(NvidiaVfioConfig)


def require_same(parameters: Any) -> None:
    """Check that parameters for NVIDIA's driver are valid and mean the same in Calabash.

    Raises:
        CalabashError: UNSUPPORTED if they mean something else, BAD_REQUEST if they are invalid.
    """
    kind = parameters.get("kind") if isinstance(parameters, dict) else None
    form: type[NvidiaVfioConfig | NvidiaGpuConfig] = NvidiaVfioConfig if kind == "VfioDeviceConfig" else NvidiaGpuConfig
    try:
        config = msgspec.convert(parameters, form)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CalabashError(
            f"the parameters for {NVIDIA_DRIVER} cannot be read: {str(error)[:_MESSAGE_MAX]}",
            hint="GpuConfig, MigDeviceConfig and VfioDeviceConfig of resource.nvidia.com/v1beta1 are known",
        ) from error
    if config.api_version not in API_VERSIONS:
        raise CalabashError(
            f"{config.kind} of {config.api_version!r} is not known", hint=f"known is {', '.join(sorted(API_VERSIONS))}"
        )
    if isinstance(config, NvidiaVfioConfig):
        _require_legacy(config.iommu)
    elif config.sharing is not None:
        _require_turns(config.sharing)


def _require_turns(sharing: NvidiaSharing) -> None:
    if sharing.strategy == "MPS":
        raise _other(
            "strategy MPS divides a card among the containers of one claim",
            "ask the class mps.calabash.dev for a share of each: capacity.requests with memory and cores",
        )
    if sharing.strategy != "TimeSlicing" or sharing.mps_config is not None:
        raise _other(
            f"strategy {sharing.strategy} is not offered", "remove sharing: containers of a claim time-slice it"
        )
    interval = sharing.time_slicing_config.interval if sharing.time_slicing_config is not None else None
    if interval not in {None, "Default"}:
        raise _other(f"turns of length {interval} are a setting of the node", "agent.timeSlicing.interval of the chart")


def _require_legacy(iommu: NvidiaIommu | None) -> None:
    if iommu is not None and (iommu.backend_policy != "LegacyOnly" or iommu.enable_api_device):
        raise _other(
            f"IOMMU backend {iommu.backend_policy} with its own device is not offered",
            "remove iommu: VFIO groups are used",
        )


def _other(message: str, hint: str) -> CalabashError:
    return CalabashError(message, reason=Reason.UNSUPPORTED, hint=hint)
