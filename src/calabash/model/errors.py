"""One error style: what happened with the numbers, a stable reason code, and a hint.

The reason code is shared by the CLI (exit code and JSON), the HTTP API, events and metrics.
"""

from __future__ import annotations

from enum import StrEnum

from calabash.model.mentions import plain


class Reason(StrEnum):
    """Stable codes; a code never changes its meaning. Explanations carry the numbers."""

    BAD_REQUEST = "bad_request"
    UNKNOWN_MODE = "unknown_mode"
    NOT_FOUND = "not_found"
    NOT_PERMITTED = "not_permitted"
    NOT_AUTHENTICATED = "not_authenticated"
    CONFLICT = "conflict"
    POOL_DOWN = "pool_down"
    POOL_RUNNING = "pool_running"
    STORE_NEWER = "store_newer"
    STORE_UNAVAILABLE = "store_unavailable"
    STORE_DAMAGED = "store_damaged"
    DISK_FULL = "disk_full"
    OVERLOADED = "overloaded"
    HOST_FAILED = "host_failed"
    BAD_FILE = "bad_file"
    UNSUPPORTED = "unsupported"
    API_DOWN = "api_down"
    KUBELET_DOWN = "kubelet_down"
    FOREIGN_PLUGIN = "foreign_plugin"
    UNREACHABLE = "unreachable"
    # why a request is not placed
    NO_DEVICES = "no_devices"
    TOO_LARGE = "too_large"
    NO_CAPACITY = "no_capacity"
    NO_MEMORY = "no_memory"
    NO_CORES = "no_cores"
    NO_CPU = "no_cpu"
    NO_HOST_MEMORY = "no_host_memory"
    SELECTOR_MISMATCH = "selector_mismatch"
    MODE_CONFLICT = "mode_conflict"
    TAINTED = "tainted"
    TOPOLOGY = "topology"
    UNHEALTHY = "unhealthy"
    GANG_INCOMPLETE = "gang_incomplete"
    USER_LIMIT = "user_limit"
    QUEUE_OVER_LIMIT = "queue_over_limit"
    QUEUE_OVER_DESERVED = "queue_over_deserved"
    RESERVED = "reserved"
    WAITS_FOR_MOVE = "waits_for_move"
    TIMEOUT = "timeout"
    CORDONED = "cordoned"
    FABRIC_HELD = "fabric_held"
    PLAN_UNUSED = "plan_unused"
    WRITE_REFUSED = "write_refused"
    # why a running request is stopped
    RECLAIM = "reclaim"
    PREEMPT = "preempt"
    MOVED = "moved"
    OVER_USE = "over_use"
    BUDGET_SPENT = "budget_spent"
    IDLE = "idle"
    DRAINED = "drained"
    RUN_TIME = "run_time"
    # what drivers saw and nobody was given
    STRANGER = "stranger"
    UNDER_REPORTED = "under_reported"
    NEIGHBOUR_FAULT = "neighbour_fault"
    UNVERIFIED = "unverified"


def cause(error: BaseException) -> str:
    """Return what an error says, of one of the operating system without its number and the path that it repeats."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def file_reason(error: BaseException) -> Reason:
    """Return the reason of a file that cannot be used: NOT_FOUND if there is none, else BAD_FILE."""
    return Reason.NOT_FOUND if isinstance(error, FileNotFoundError) else Reason.BAD_FILE


class CalabashError(Exception):
    """An error that a user can act on.

    Args:
        message: what failed, with the object and the numbers, in one line; it may have ``mentions``.
        reason: the stable code.
        hint: the next command or change to try, without the word "hint".
    """

    def __init__(self, message: str, *, reason: Reason = Reason.BAD_REQUEST, hint: str = "") -> None:
        super().__init__(plain(message))
        self.message = plain(message)
        self.reason = reason
        self.hint = plain(hint)
        self.marked_message = message
        self.marked_hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message
