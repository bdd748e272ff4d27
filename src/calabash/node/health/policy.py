"""``health.toml`` in the home: what an operator may change of how failing cards are judged and brought back.

Everything has a default. The classes of XIDs are NVIDIA's published ones ("Xid catalog", docs.nvidia.com/deploy/xid-errors,
column "immediate action"): what says RESTART_APP or IGNORE is the application's, RESET_GPU and the workflows of memory and
links are resets, what somebody has to touch (CHECK_MECHANICALS, CONTACT_SUPPORT) is a replacement.
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
    """What is done about a fault. SUSPECT: nothing new, as long as it lasts."""

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
_REPLACE_XIDS = (54,)  # the power connector: somebody has to go there


class _Table(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A table of the file."""


class XidClasses(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Which XID is of which class. A number in a list of the file is taken out of the default ones; what is in none is the
    application's. 79, fallen off the bus, is not asked for: the card is lost until it answers."""

    application: tuple[Code, ...] = ()
    reset: tuple[Code, ...] = ()
    replace: tuple[Code, ...] = ()

    def of(self, code: int) -> FaultClass:
        """The class of a number."""
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
    """Memory errors. ``uncorrected``: so many new ones at once take a card out of service; 0: none do."""

    uncorrected: Count = 1
    row_remap_pending: FaultClass = FaultClass.RESET
    row_remap_failed: FaultClass = FaultClass.REPLACE
    page_retirement_pending: FaultClass = FaultClass.RESET


class ThrottleRules(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How many seconds a card may be slowed down before it takes nothing new; 0: for ever. That a card keeps to its power
    limit is everyday life; that it is braked by its power supply is not."""

    thermal_s: Seconds = 0.5
    power_brake_s: Seconds = 0.5
    power_cap_s: Seconds = 0.0


class LinkRules(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """NVLinks that were up and are not."""

    down: FaultClass = FaultClass.SUSPECT


class MpsRules(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """NVIDIA's multi-process service. What is wrong with it is wrong with a part of its card, which comes back by itself.

    ``client_fault``: a fatal fault of a program, which hits all others. ``daemon_died``: the daemon, or its server.
    """

    client_fault: FaultClass = FaultClass.APPLICATION
    daemon_died: FaultClass = FaultClass.RESET


class RecoveryRules(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How cards come back.

    ``reset``: whether the agent resets cards by itself. ``answer_within_s``: a reading that takes longer is a missed one.
    ``test_slowest``: a test that takes so many times the card's own earlier figure has failed.
    """

    reset: bool = True
    answer_within_s: Interval = 0.75
    test_again_s: Interval = 10.0
    reset_again_s: Interval = 30.0
    test_slowest: Annotated[float, Meta(ge=1, le=1000)] = 4.0


_DAMPING = Flapping()


class FlappingRules(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """See ``health.Flapping``."""

    window_s: Interval = _DAMPING.window_s
    most: Annotated[int, Meta(ge=2, le=100)] = _DAMPING.most
    hold_s: Interval = _DAMPING.hold_s
    hold_max_s: Interval = _DAMPING.hold_max_s


class HealthPolicy(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The whole file."""

    xid: XidClasses = XidClasses()
    memory: MemoryRules = MemoryRules()
    throttling: ThrottleRules = ThrottleRules()
    nvlink: LinkRules = LinkRules()
    mps: MpsRules = MpsRules()
    recovery: RecoveryRules = RecoveryRules()
    flapping: FlappingRules = FlappingRules()

    def damping(self) -> Flapping:
        """As the machine takes it."""
        return Flapping(**msgspec.structs.asdict(self.flapping))


def read_policy(home: Path) -> HealthPolicy:
    """The policy of the home. Raises CalabashError(BAD_FILE) that names the line or the field."""
    path = home / POLICY_FILE
    try:
        policy = msgspec.toml.decode(path.read_bytes(), type=HealthPolicy)
    except FileNotFoundError:
        return HealthPolicy()
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise CalabashError(
            f"{path} is not understood: {error}",
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
