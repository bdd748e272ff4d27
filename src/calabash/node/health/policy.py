"""Health policy of a pool, read from ``health.toml`` in its home: classes of faults and rules of recovery.

All settings have defaults. The default classes of XIDs are NVIDIA's published ones ("Xid catalog",
docs.nvidia.com/deploy/xid-errors, column "immediate action"): RESTART_APP and IGNORE are faults of the application;
RESET_GPU and the workflows of memory and links need a reset; actions that need a person at the machine
(CHECK_MECHANICALS, CONTACT_SUPPORT) need a replacement.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.model.errors import CalabashError, Reason
from calabash.node.health.conditions import Flapping, HealthEvent

POLICY_FILE = "health.toml"

Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
Interval = Annotated[float, Meta(ge=0.1, le=86_400)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Code = Annotated[int, Meta(ge=1, le=100_000)]


class FaultClass(StrEnum):
    """Action on a fault. SUSPECT: no new work as long as it lasts."""

    IGNORE = "ignore"
    APPLICATION = "application"
    SUSPECT = "suspect"
    RESET = "reset"
    REPLACE = "replace"


EVENT_OF = {
    FaultClass.APPLICATION: HealthEvent.APP_FAULT,
    FaultClass.RESET: HealthEvent.NEEDS_RESET,
    FaultClass.REPLACE: HealthEvent.NEEDS_REPLACE,
}

_RESET_XIDS = (
    *(46, 61, 62, 109, 110, 119, 120, 123, 136, 143),  # stopped processing, controllers, firmware, start-up
    *(48, 64, 95, 140),  # memory: uncorrectable, a remapping that failed, uncontained, not recovered
    *(74, 121, *range(144, 152)),  # links
    154,  # the driver itself asks for a recovery action
)
_REPLACE_XIDS = (54,)  # the power connector needs a person at the machine


class _Table(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A table of the file."""


class XidClasses(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Classes of XIDs. A number in a list of the file overrides its default class.

    Numbers in no list are faults of the application. XID 79, fallen off the bus, is not used: the card is LOST until it
    answers.
    """

    application: tuple[Code, ...] = ()
    reset: tuple[Code, ...] = ()
    replace: tuple[Code, ...] = ()

    def class_of(self, code: int) -> FaultClass:
        """Return the class of an XID."""
        for fault, said, default in (
            (FaultClass.APPLICATION, self.application, ()),
            (FaultClass.RESET, self.reset, ()),
            (FaultClass.REPLACE, self.replace, ()),
            (FaultClass.RESET, (), _RESET_XIDS),
            (FaultClass.REPLACE, (), _REPLACE_XIDS),
        ):
            if code in said or code in default:
                return fault
        return FaultClass.APPLICATION


class MemoryRules(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Memory errors. ``uncorrected``: number of new ones between two readings that takes a card out of service; 0: none."""

    uncorrected: Count = 1
    row_remap_pending: FaultClass = FaultClass.RESET
    row_remap_failed: FaultClass = FaultClass.REPLACE
    page_retirement_pending: FaultClass = FaultClass.RESET


class ThrottleRules(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Seconds for which a card may be slowed down before it takes no new work; 0: without limit.

    Running at the power limit is normal by default; being slowed down by the power supply is not.
    """

    thermal_s: Seconds = 0.5
    power_brake_s: Seconds = 0.5
    power_cap_s: Seconds = 0.0


class LinkRules(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Class of NVLinks that were up and are down."""

    down: FaultClass = FaultClass.SUSPECT


class MpsRules(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """NVIDIA's multi-process service. Its faults are those of a service of the card, which recovers automatically.

    ``client_fault``: fatal fault of a program, which affects all other clients. ``daemon_died``: end of the daemon or
    its server.
    """

    client_fault: FaultClass = FaultClass.APPLICATION
    daemon_died: FaultClass = FaultClass.RESET


class RecoveryRules(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Recovery of cards.

    ``reset``: the agent resets cards automatically. ``answer_within_s``: a reading that takes longer is missed.
    ``test_slowest``: a test that takes this many times the card's best earlier time has failed.
    """

    reset: bool = True
    answer_within_s: Interval = 0.75
    test_again_s: Interval = 10.0
    reset_again_s: Interval = 30.0
    test_slowest: Annotated[float, Meta(ge=1, le=1000)] = 4.0


_DAMPING = Flapping()


class FlappingRules(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """See ``conditions.Flapping``."""

    window_s: Interval = _DAMPING.window_s
    most: Annotated[int, Meta(ge=2, le=100)] = _DAMPING.most
    hold_s: Interval = _DAMPING.hold_s
    hold_max_s: Interval = _DAMPING.hold_max_s


class HealthPolicy(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Contents of the file."""

    xid: XidClasses = XidClasses()
    memory: MemoryRules = MemoryRules()
    throttling: ThrottleRules = ThrottleRules()
    nvlink: LinkRules = LinkRules()
    mps: MpsRules = MpsRules()
    recovery: RecoveryRules = RecoveryRules()
    flapping: FlappingRules = FlappingRules()

    def damping(self) -> Flapping:
        """Return the flapping rules as ``Flapping``."""
        return Flapping(**msgspec.structs.asdict(self.flapping))


def read_policy(home: Path) -> HealthPolicy:
    """Read the policy of a home; defaults if there is no file.

    Raises:
        CalabashError: BAD_FILE; names the line or the field.
    """
    path = home / POLICY_FILE
    try:
        policy = msgspec.toml.decode(path.read_bytes(), type=HealthPolicy)
    except FileNotFoundError:
        return HealthPolicy()
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise CalabashError(
            f"{path} is not a valid health policy: {error}",
            reason=Reason.BAD_FILE,
            hint=f"tables {', '.join(f'[{name}]' for name in HealthPolicy.__struct_fields__)}; "
            "see docs/how-to/handle-failed-cards.md",
        ) from None
    codes = [*policy.xid.application, *policy.xid.reset, *policy.xid.replace]
    twice = sorted({code for code in codes if codes.count(code) > 1})
    if twice:
        raise CalabashError(
            f"{path}: XID {twice[0]} is in more than one class", reason=Reason.BAD_FILE, hint="name it once in [xid]"
        )
    return policy
