"""Settings of the fabric controller: ``fabric.toml`` lists the fabrics, their managers, and the addresses of devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from calabash.adapters.ufm import UfmClient, UfmServer
from calabash.controllers.fabric.driver import FabricIsolation, NullFabric
from calabash.controllers.fabric.infiniband import InfinibandFabric
from calabash.controllers.fabric.simulated import SimulatedFabric
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.fabric import FabricEndpoint, FabricPlane
from calabash.net.fabric_partitions import PKEY_DEFAULT, check_endpoints, read_address

_Number = Annotated[int, Meta(ge=1, le=PKEY_DEFAULT - 1)]


class InfinibandSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Settings of an InfiniBand fabric.

    ``driver`` is ``ufm``, or ``null`` for a fabric without partitions. P_Keys ``first_number`` to ``last_number`` belong to
    Calabash. See ``UfmServer`` for the other fields.
    """

    driver: Literal["ufm", "null"] = "null"
    url: str = ""
    user: str = ""
    password_file: str = ""
    token_file: str = ""
    authority: str = ""
    timeout_s: Annotated[float, Meta(gt=0, le=300)] = 10.0
    first_number: _Number = 0x100
    last_number: _Number = 0x7EFF


class SwitchedSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Settings of RoCE or NVLink: ``simulated`` keeps partitions in ``file``; ``null`` is a fabric without partitions."""

    driver: Literal["simulated", "null"] = "null"
    file: str = ""
    first_number: _Number = 1
    last_number: _Number = 4094


class DeviceFabricAddresses(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Addresses of one device on each plane, and its NVLink domain."""

    device: Annotated[str, Meta(min_length=1, max_length=96)]
    infiniband: tuple[str, ...] = ()
    roce: tuple[str, ...] = ()
    nvlink: tuple[str, ...] = ()
    nvlink_domain: str = ""


class FabricSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Contents of the file. A missing section is an unmanaged plane.

    ``card`` lists the devices with their addresses; ``every_s`` are the seconds after which an unchanged fabric is
    observed again.
    """

    infiniband: InfinibandSettings | None = None
    roce: SwitchedSettings | None = None
    nvlink: SwitchedSettings | None = None
    card: tuple[DeviceFabricAddresses, ...] = ()
    every_s: Annotated[float, Meta(ge=1, le=3600)] = 30.0

    def endpoints(self) -> tuple[FabricEndpoint, ...]:
        """Return the endpoints of all devices. Raises CalabashError for invalid or duplicate addresses."""
        return check_endpoints(
            FabricEndpoint(plane=plane, device=DeviceUuid(card.device), address=read_address(plane, text))
            for card in self.card
            for plane in FabricPlane
            for text in getattr(card, plane.value)
        )

    def drivers(self, directory: Path) -> list[FabricIsolation]:
        """Return one driver for each section; relative files are in ``directory``. Raises CalabashError."""
        found: list[FabricIsolation] = []
        if self.infiniband is not None:
            found.append(_infiniband(self.infiniband))
        domains = {address: card.nvlink_domain for card in self.card for address in card.nvlink}
        for plane, switched in ((FabricPlane.ROCE, self.roce), (FabricPlane.NVLINK, self.nvlink)):
            if switched is not None:
                found.append(_switched(plane, switched, directory, domains))
        return found


def read_fabric(path: Path) -> FabricSettings:
    """Read the settings. Raises CalabashError (BAD_FILE) that names the field."""
    try:
        settings = msgspec.toml.decode(path.read_bytes(), type=FabricSettings)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise CalabashError(
            f"{path} is invalid: {error}",
            reason=Reason.BAD_FILE,
            hint="sections [infiniband], [roce], [nvlink] and [[card]]; see docs/how-to/isolate-rdma-fabrics.md",
        ) from None
    settings.endpoints()
    return settings


def _infiniband(settings: InfinibandSettings) -> FabricIsolation:
    if settings.driver == "null":
        return NullFabric(FabricPlane.INFINIBAND)
    if not settings.url:
        raise CalabashError("[infiniband] needs a url", reason=Reason.BAD_FILE, hint='url = "https://ufm.example.org"')
    server = UfmServer(
        url=settings.url,
        user=settings.user,
        password_file=settings.password_file,
        token_file=settings.token_file,
        authority=settings.authority,
        timeout_s=settings.timeout_s,
    )
    return InfinibandFabric(UfmClient(server), first=settings.first_number, last=settings.last_number)


def _switched(
    plane: FabricPlane, settings: SwitchedSettings, directory: Path, domains: dict[str, str]
) -> FabricIsolation:
    if settings.driver == "null":
        return NullFabric(plane)
    file = directory / (settings.file or f"{plane}.json")
    return SimulatedFabric(plane, file, first=settings.first_number, last=settings.last_number, domains=domains)
