"""Health policy of a pool, read from ``health.toml`` in its home directory: classes of faults and rules of recovery.

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
    """Class of a fault, which determines the action on it.

    APPLICATION: report a fault of the program. SUSPECT: no new work while the fault lasts. RESET, REPLACE: the card
    needs a reset or a replacement.
    """

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
    """Base class of the tables of ``health.toml``."""


class XidClasses(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Classes of XIDs, the error codes of NVIDIA's driver. A number in a list of the file overrides its default class.

    Numbers in no list are faults of the application. XID 79 (the card has fallen off the bus) needs no class: such a
    card does not answer, so it is LOST until it answers again.
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
    """Rules for memory errors.

    ``uncorrected`` is the number of new uncorrected errors between two readings from which a card needs a reset; 0:
    such errors are ignored. The other fields are the classes of the faults that they name.
    """

    uncorrected: Count = 1
    row_remap_pending: FaultClass = FaultClass.RESET
    row_remap_failed: FaultClass = FaultClass.REPLACE
    page_retirement_pending: FaultClass = FaultClass.RESET


class ThrottleRules(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Seconds for which a card may be slowed down before it takes no new work; 0: without limit.

    By default, a card may run at its power limit without limit of time, but may not be slowed down by its power supply.
    """

    thermal_s: Seconds = 0.5
    power_brake_s: Seconds = 0.5
    power_cap_s: Seconds = 0.0


class LinkRules(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Rules for NVLinks. ``down`` is the class of the fault that occurs when a link goes down."""

    down: FaultClass = FaultClass.SUSPECT


class MpsRules(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Rules for NVIDIA's multi-process service, whose faults do not affect the card. The service recovers by itself.

    ``client_fault`` is the class of a fatal fault of one program, which affects all other clients. ``daemon_died`` is
    the class of an unexpected end of the daemon or its server.
    """

    client_fault: FaultClass = FaultClass.APPLICATION
    daemon_died: FaultClass = FaultClass.RESET


class RecoveryRules(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Rules for the recovery of cards.

    ``reset``: the agent resets cards automatically. ``answer_within_s``: a reading that takes longer counts as missed.
    ``test_again_s``, ``reset_again_s``: pause before a test or a reset is tried again. ``test_slowest``: a test whose
    steps take more than this many times the card's best earlier time has failed.
    """

    reset: bool = True
    answer_within_s: Interval = 0.75
    test_again_s: Interval = 10.0
    reset_again_s: Interval = 30.0
    test_slowest: Annotated[float, Meta(ge=1, le=1000)] = 4.0


_DAMPING = Flapping()


class FlappingRules(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Limits of flapping in ``health.toml``; see ``conditions.Flapping``."""

    window_s: Interval = _DAMPING.window_s
    most: Annotated[int, Meta(ge=2, le=100)] = _DAMPING.most
    hold_s: Interval = _DAMPING.hold_s
    hold_max_s: Interval = _DAMPING.hold_max_s


class HealthPolicy(_Table, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Health policy: the contents of ``health.toml``, one field for each table."""

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
    """Read the policy from a pool's home directory; the defaults if there is no file.

    Raises:
        CalabashError: BAD_FILE if the file is not valid; the message names the line or the field.
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
