"""Settings of the pool: the file ``pool.toml`` in its home, which is optional and read at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from calabash.adapters.host.memory import memory_mib
from calabash.api.gateway import ConsoleSettings
from calabash.model.device import REPLICAS, REPLICAS_MAX
from calabash.model.errors import CalabashError, Reason
from calabash.node.devices.settings import CardSettings
from calabash.node.modes.protocol import WorkerUsers
from calabash.platform.home.directory import SETTINGS_FILE
from calabash.platform.home.limits import Limits, RetentionSettings
from calabash.platform.notifications.settings import NotificationSettings
from calabash.pool.overuse.policy import OverUseAnswer, OverUsePolicy
from calabash.sched import parse_half_life_s


class Devices(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Settings of all devices. ``calabash device set`` overrides ``spill``, ``replicas`` and ``interval`` for one device.

    Args:
        one_process: an exclusively allocated device accepts one process only (the driver's compute mode
            EXCLUSIVE_PROCESS). Programs with several processes on the device then fail.
        spill: slices may use host memory in addition to the memory of their devices (``calabash run --spill``).
        spill_mib_max: most host memory in MiB for all such slices together; 0: half of the machine's memory.
        replicas: number of allocations that share a device in mode ``timeslice``.
        interval: length of the time slices in that mode: ``default``, ``short``, ``medium`` or ``long``; "" leaves it to
            the driver.
    """

    one_process: bool = False
    spill: bool = False
    spill_mib_max: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    replicas: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)] = REPLICAS
    interval: Literal["", "default", "short", "medium", "long"] = ""

    def spilled_mib(self) -> int:
        """Return the host memory in MiB that slices may use beyond their devices."""
        return self.spill_mib_max or memory_mib() // 2

    def cards(self) -> CardSettings:
        """Return the settings of all devices."""
        return CardSettings(
            spill_mib=self.spilled_mib(), spill=self.spill, replicas=self.replicas, interval=self.interval
        )


class Workers(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Range of uids for worker processes, which access a device for programs with isolation ``brokered``.

    Used only if the pool runs as root. The worker of each allocation has a uid of its own. Uids that belong to a named account
    of this machine are skipped.

    Args:
        first_user: first uid of the range.
        last_user: last uid of the range.
    """

    first_user: Annotated[int, Meta(ge=1000, le=1 << 31)] = 64_000
    last_user: Annotated[int, Meta(ge=1000, le=1 << 31)] = 65_533

    def users(self) -> WorkerUsers:
        return WorkerUsers(first=self.first_user, last=max(self.first_user, self.last_user))


class JobSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Jobs: commands that the pool runs for users (``calabash job``, the console).

    Args:
        enabled: jobs are accepted.
        least_user: smallest uid whose jobs are run; smaller ones are accounts of the system. Root's are never run.
        per_user: largest number of waiting and running jobs of one user.
        kept: number of ended jobs that are kept.
    """

    enabled: bool = True
    least_user: Annotated[int, Meta(ge=1, le=1 << 31)] = 1000
    per_user: Annotated[int, Meta(ge=1, le=1000)] = 16
    kept: Annotated[int, Meta(ge=1, le=1000)] = 50


class FabricHoldSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Settings for the RDMA fabrics that ``fabric.toml`` names.

    Args:
        hold: grant a card only after the fabric controller (``calabash serve fabric``) has reported that the card is
            in no other tenant's partition.
        run: keep the fabric controller running while ``fabric.toml`` is in the pool's home.
    """

    hold: bool = False
    run: bool = False


class QueueTreeSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Settings of the queue tree.

    Args:
        half_life: half-life of past use, for example ``"7d"``, from ``"1m"`` to ``"366d"``; ``"0"``: past use does not
            count. A queue that borrowed more than its weight entitled it to comes after its siblings until that is past.
    """

    half_life: str = "0"

    def half_life_s(self) -> float:
        """Return the half-life in seconds. Raises CalabashError if it is invalid."""
        return parse_half_life_s(self.half_life)


class OverUseSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Consequences of an exceeded budget or limit, and of an idle slice.

    A consequence is ``off``, ``tell`` (report it), ``hold`` (also no new slices), ``lower`` (also best-effort shares while it
    lasts) or ``return`` (also end allocations after ``notice_minutes``).

    Args:
        budget: consequence of a spent budget of the month.
        budget_warn_percent: percent of the budget; a warning is reported when the tenant has spent so much.
        limit: consequence if a tenant holds more than its limit, which happens if the limit is lowered. ``return`` ends the
            newest slices.
        idle: consequence if a slice has had no GPU time for ``idle_minutes``.
        idle_minutes: minutes without GPU time after which a slice is idle.
        notice_minutes: minutes between the notice to the tenant and the end of an allocation with ``return``.
    """

    budget: Literal["off", "tell", "hold", "lower", "return"] = "hold"
    budget_warn_percent: Annotated[float, Meta(gt=0, le=100)] = 80
    limit: Literal["off", "tell", "hold", "lower", "return"] = "tell"
    idle: Literal["off", "tell", "return"] = "off"
    idle_minutes: Annotated[float, Meta(gt=0, le=525_600)] = 30
    notice_minutes: Annotated[float, Meta(ge=0, le=10_080)] = 5

    def policy(self) -> OverUsePolicy:
        return OverUsePolicy(
            budget=OverUseAnswer(self.budget),
            budget_warn_ratio=self.budget_warn_percent / 100,
            limit=OverUseAnswer(self.limit),
            idle=OverUseAnswer(self.idle),
            idle_s=self.idle_minutes * 60,
            notice_s=self.notice_minutes * 60,
        )


class Settings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Contents of the settings file.

    Each field is a section; ``[tenants.NAME]`` replaces ``[over_use]`` for one tenant.
    """

    user: Limits = Limits()
    journal: RetentionSettings = RetentionSettings()
    devices: Devices = Devices()
    workers: Workers = Workers()
    console: ConsoleSettings = ConsoleSettings()
    jobs: JobSettings = JobSettings()
    queues: QueueTreeSettings = QueueTreeSettings()
    notifications: NotificationSettings = NotificationSettings()
    over_use: OverUseSettings = OverUseSettings()
    fabric: FabricHoldSettings = FabricHoldSettings()
    tenants: dict[str, OverUseSettings] = {}

    def over_use_policy(self, tenant: str) -> OverUsePolicy:
        """Return the over-use policy of one tenant."""
        return self.tenants.get(tenant, self.over_use).policy()


def read_settings(home: Path) -> Settings:
    """Return the settings of the pool with this home directory. Raises BAD_FILE, which names the line or the field."""
    path = home / SETTINGS_FILE
    try:
        settings = msgspec.toml.decode(path.read_bytes(), type=Settings)
        settings.queues.half_life_s()
        return settings
    except FileNotFoundError:
        return Settings()
    except CalabashError as error:
        raise CalabashError(
            f"{path} is not understood: [queues] {error.message}", reason=Reason.BAD_FILE, hint=error.hint
        ) from None
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise CalabashError(
            f"{path} is not understood: {error}",
            reason=Reason.BAD_FILE,
            hint=f"sections {', '.join(f'[{name}]' for name in Settings.__struct_fields__)};"
            " see docs/reference/pool-settings.md",
        ) from None
