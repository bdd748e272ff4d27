"""Opaque driver parameters of claims and device classes (``SliceConfig``): strict decoding and merging.

Opaque parameters are those that Kubernetes passes to the driver without reading them. Parameters of the class are
applied first; parameters of the claim replace them field by field. Parameters for NVIDIA's driver are only checked
(``nvidia``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from calabash.adapters.kube.objects.claims import AllocatedConfig, OpaqueConfig
from calabash.kubernetes.claims.device_names import DRIVER
from calabash.kubernetes.claims.nvidia import NVIDIA_DRIVER, require_same
from calabash.kubernetes.objects.names import GROUP
from calabash.kubernetes.objects.quantity import mib_of, parse_quantity
from calabash.model.errors import CalabashError
from calabash.model.request import ComputePolicy, Isolation

API_VERSION = f"{GROUP}/v1"
KIND = "SliceConfig"
PARAMETERS_BYTES_MAX = 10 * 1024
CONFIGS_MAX = 64
_MESSAGE_MAX = 256  # of a decoder, which quotes the value
_FROM_CLASS = "FromClass"
_ISOLATIONS = {level.name.lower(): level for level in (Isolation.COOPERATIVE, Isolation.BROKERED)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceParameters:
    """Parameters for the use of an allocated device; None for a parameter that is not set.

    Args:
        policy: compute policy of the slice.
        spill_mib: host memory, in MiB, that the slice has in addition to the allocated device memory.
        isolation: isolation level of the slice.
    """

    policy: ComputePolicy | None = None
    spill_mib: int | None = None
    isolation: Isolation | None = None

    def over(self, other: SliceParameters) -> SliceParameters:
        """Return the combination of both; a parameter that is set in this object has precedence over ``other``."""
        return SliceParameters(
            policy=self.policy if self.policy is not None else other.policy,
            spill_mib=self.spill_mib if self.spill_mib is not None else other.spill_mib,
            isolation=self.isolation if self.isolation is not None else other.isolation,
        )


class SliceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """The document with the parameters: ``spill`` is a quantity like ``4Gi``, ``isolation`` cooperative or brokered."""

    api_version: str
    kind: str
    policy: ComputePolicy | None = None
    spill: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    isolation: Annotated[str, msgspec.Meta(max_length=32)] | None = None


# Created at import: msgspec crashes when two threads convert to a type for the first time at once.
msgspec.json.Decoder(SliceConfig)


def read_parameters(parameters: Any) -> SliceParameters:
    """Decode a ``SliceConfig``.

    Args:
        parameters: the document as dictionaries and lists.

    Raises:
        CalabashError: the document is not a valid ``SliceConfig``.
    """
    _require_short(parameters)
    if not isinstance(parameters, dict):
        raise CalabashError("the parameters are not an object", hint=f"write apiVersion: {API_VERSION}, kind: {KIND}")
    kind = (str(parameters.get("apiVersion"))[:64], str(parameters.get("kind"))[:64])
    if kind != (API_VERSION, KIND):
        raise CalabashError(
            f"parameters of kind {kind[1]!r} of {kind[0]!r} are not known", hint=f"write {KIND} of {API_VERSION}"
        )
    try:
        config = msgspec.convert(parameters, SliceConfig)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CalabashError(f"the {KIND} cannot be read: {str(error)[:_MESSAGE_MAX]}", hint=_hint()) from error
    return SliceParameters(
        policy=config.policy, spill_mib=_spill_mib(config.spill), isolation=_isolation(config.isolation)
    )


def parameters_for(request: str, configs: Sequence[AllocatedConfig]) -> SliceParameters:
    """Return the merged parameters that apply to one request of a claim.

    Args:
        request: name of the request as in the results of an allocation: ``REQUEST`` or ``REQUEST/SUBREQUEST``.
        configs: configurations of the allocation, of the class and of the claim.

    Raises:
        CalabashError: a configuration is invalid, or there are too many.
    """
    if len(configs) > CONFIGS_MAX:
        raise CalabashError(f"the claim has {len(configs)} configurations, at most {CONFIGS_MAX}", hint="join them")
    names = {request, request.partition("/")[0]}
    parameters = SliceParameters()
    for config in sorted(configs, key=lambda c: c.source != _FROM_CLASS):
        if config.opaque is not None and names.intersection(config.requests or names):
            parameters = read_opaque(config.opaque).over(parameters)
    return parameters


def read_opaque(opaque: OpaqueConfig) -> SliceParameters:
    """Return the parameters of a configuration for this driver; for other drivers' configurations, no parameter is set.

    Parameters for NVIDIA's driver are checked.

    Raises:
        CalabashError: the parameters are invalid, or those for NVIDIA's driver mean something else in Calabash.
    """
    if opaque.driver == NVIDIA_DRIVER:
        _require_short(opaque.parameters)
        require_same(opaque.parameters)
    return read_parameters(opaque.parameters) if opaque.driver == DRIVER else SliceParameters()


def _require_short(parameters: Any) -> None:
    size = len(_encoded(parameters))
    if size > PARAMETERS_BYTES_MAX:
        raise CalabashError(f"the parameters are {size} bytes, at most {PARAMETERS_BYTES_MAX}", hint="shorten them")


def _spill_mib(written: str | None) -> int | None:
    if written is None:
        return None
    amount = parse_quantity(written, what="spill")
    return mib_of(amount, what="spill") if amount else 0


def _isolation(word: str | None) -> Isolation | None:
    if word is not None and word not in _ISOLATIONS:
        raise CalabashError(
            f"isolation {word!r} is not offered by a configuration",
            hint=f"one of: {', '.join(_ISOLATIONS)}; hardware is a MIG device or a whole one: ask its class",
        )
    return None if word is None else _ISOLATIONS[word]


def _encoded(parameters: Any) -> bytes:
    try:
        return msgspec.json.encode(parameters)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise CalabashError("the parameters cannot be read as JSON", hint=_hint()) from error


def _hint() -> str:
    return f"{KIND} has policy (fixed, burst, best-effort), spill (like 4Gi) and isolation ({', '.join(_ISOLATIONS)})"
