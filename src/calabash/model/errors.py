"""Error type of the product, and the stable reason codes that errors, explanations, events and metrics share.

An error has a message that names the object and the numbers, a reason code and a hint. The CLI turns the reason code into its
exit code and writes it to JSON output; the HTTP API turns it into a status.
"""

from __future__ import annotations

from enum import StrEnum

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from calabash.model.messages import Text


class Reason(StrEnum):
    """Stable reason codes, described in ``REASON_DESCRIPTIONS``. The meaning of a code never changes."""

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
    # reasons for which a request is not placed
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
    # reasons for which a running request is stopped
    RECLAIM = "reclaim"
    PREEMPT = "preempt"
    MOVED = "moved"
    OVER_USE = "over_use"
    BUDGET_SPENT = "budget_spent"
    IDLE = "idle"
    DRAINED = "drained"
    RUN_TIME = "run_time"
    # differences between granted and measured use
    STRANGER = "stranger"
    UNDER_REPORTED = "under_reported"
    NEIGHBOUR_FAULT = "neighbour_fault"
    UNVERIFIED = "unverified"


REASON_DESCRIPTIONS: dict[Reason, str] = {
    Reason.BAD_REQUEST: "The request, an option or an argument is not valid.",
    Reason.UNKNOWN_MODE: "The request names a sharing mode that does not exist.",
    Reason.NOT_FOUND: "The named object or file does not exist.",
    Reason.NOT_PERMITTED: "The user is not allowed to do this.",
    Reason.NOT_AUTHENTICATED: "The request has no valid credential.",
    Reason.CONFLICT: "The object was changed or is in use; repeat the operation on its current state.",
    Reason.POOL_DOWN: "The pool does not run or cannot be reached.",
    Reason.POOL_RUNNING: "The operation needs a stopped pool or server, and one runs.",
    Reason.STORE_NEWER: "The database was written by a newer version of the product.",
    Reason.STORE_UNAVAILABLE: "The database cannot be opened or does not answer.",
    Reason.STORE_DAMAGED: "The content of the database is damaged.",
    Reason.DISK_FULL: "A file system has no free space.",
    Reason.OVERLOADED: "A limit of the process, for example of open files, is reached; repeat the request later.",
    Reason.HOST_FAILED: "An operation of the operating system failed.",
    Reason.BAD_FILE: "A file cannot be read or its content is not valid.",
    Reason.UNSUPPORTED: "The operation is not supported here, for example by the driver, the device or the sharing mode.",
    Reason.API_DOWN: "The API server or another control daemon does not answer.",
    Reason.KUBELET_DOWN: "The kubelet does not answer.",
    Reason.FOREIGN_PLUGIN: "A device plugin of another product offers devices on the node.",
    Reason.UNREACHABLE: "A network connection to a host or service failed.",
    Reason.NO_DEVICES: "No node has the requested number of devices.",
    Reason.TOO_LARGE: "The request is larger than a device, a node or a limit, so that waiting does not help.",
    Reason.NO_CAPACITY: "Not enough devices are free.",
    Reason.NO_MEMORY: "No device has enough free memory.",
    Reason.NO_CORES: "No device has enough free compute share.",
    Reason.NO_CPU: "No node has enough free CPU.",
    Reason.NO_HOST_MEMORY: "No node has enough free host memory.",
    Reason.SELECTOR_MISMATCH: "No device or node matches the selector of the request.",
    Reason.MODE_CONFLICT: "The devices are used in another sharing mode.",
    Reason.TAINTED: "The nodes have taints that the pod does not tolerate.",
    Reason.TOPOLOGY: "The free devices are not connected as the request requires.",
    Reason.UNHEALTHY: "The device or the node is not healthy.",
    Reason.GANG_INCOMPLETE: "Members of the gang are missing or could not be started.",
    Reason.USER_LIMIT: "A limit per user, tenant or client is reached.",
    Reason.QUEUE_OVER_LIMIT: "The queue would exceed its limit.",
    Reason.QUEUE_OVER_DESERVED: "The queue holds its deserved devices, and no other devices are free to borrow.",
    Reason.RESERVED: "The free devices are reserved for a request that was made earlier.",
    Reason.WAITS_FOR_MOVE: "Other pods are being moved to free devices for the pod.",
    Reason.TIMEOUT: "An operation did not finish within its time limit.",
    Reason.CORDONED: "The node or device accepts no new work.",
    Reason.FABRIC_HELD: "The device is withheld until it has left the fabric partition of another tenant.",
    Reason.PLAN_UNUSED: "The pod was not bound according to its plan, and its devices were freed.",
    Reason.WRITE_REFUSED: "The API server refused the plan of the pod.",
    Reason.RECLAIM: "Another queue needed devices that it deserves and this queue had borrowed.",
    Reason.PREEMPT: "A request with a higher priority needed the devices.",
    Reason.MOVED: "The pod was evicted to make room for another pod, and is planned again.",
    Reason.OVER_USE: "The allocation used more device memory than it was granted.",
    Reason.BUDGET_SPENT: "The tenant has spent its budget.",
    Reason.IDLE: "The allocation did not use its devices for longer than allowed.",
    Reason.DRAINED: "The device, node or server is being drained.",
    Reason.RUN_TIME: "The allocation reached the maximum run time of its tenant.",
    Reason.STRANGER: "A process without an allocation uses a device (unmanaged process).",
    Reason.UNDER_REPORTED: "The usage page of an allocation shows less GPU time than the driver measured.",
    Reason.NEIGHBOUR_FAULT: "A fault of another MPS client, or of the MPS daemon, hit the allocation.",
    Reason.UNVERIFIED: "The compute share of an MPS client differs from the share that was granted.",
}
"""Meaning of every reason code, one sentence each."""


def cause(error: BaseException) -> str:
    """Return the text of an error.

    The text of an error of the operating system has no error number and no path. An error without a text gives the name of its
    class.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def file_reason(error: BaseException) -> Reason:
    """Return the reason code of an error about a file: NOT_FOUND if the file does not exist, else BAD_FILE."""
    return Reason.NOT_FOUND if isinstance(error, FileNotFoundError) else Reason.BAD_FILE


class CalabashError(Exception):
    """Error that a user can act on.

    Args:
        message: one line that names the failed operation, the object and the numbers.
        reason: the stable reason code.
        hint: the next command or change to try, without the word "hint".

    Attributes:
        message, hint: the texts with all names.
        message_text, hint_text: the same, to be rendered for a reader (``messages.render``).
    """

    def __init__(self, message: Text, *, reason: Reason = Reason.BAD_REQUEST, hint: Text = "") -> None:
        self.message = message if isinstance(message, str) else message.in_full()
        self.reason = reason
        self.hint = hint if isinstance(hint, str) else hint.in_full()
        self.message_text = message
        self.hint_text = hint
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message
