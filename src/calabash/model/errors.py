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
    """Stable reason codes, described in ``REASON_DESCRIPTIONS`` and ``REASON_ACTIONS``. The meaning of a code never changes."""

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
    VERSION_MISMATCH = "version_mismatch"
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
    Reason.VERSION_MISMATCH: "Two programs, or a program and its data, have versions that do not work together.",
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
    Reason.QUEUE_OVER_DESERVED: "The queue holds its guaranteed devices, and no other devices are free to borrow.",
    Reason.RESERVED: "The free devices are reserved for a request that was made earlier.",
    Reason.WAITS_FOR_MOVE: "Other pods are being moved to free devices for the pod.",
    Reason.TIMEOUT: "An operation did not finish within its time limit.",
    Reason.CORDONED: "The node or device accepts no new work.",
    Reason.FABRIC_HELD: "The device is withheld until it has left the fabric partition of another tenant.",
    Reason.PLAN_UNUSED: "The pod was not bound according to its plan, and its devices were freed.",
    Reason.WRITE_REFUSED: "The API server refused the plan of the pod.",
    Reason.RECLAIM: "Another queue needed devices that are guaranteed to it and that this queue had borrowed.",
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

REASON_ACTIONS: dict[Reason, str] = {
    Reason.BAD_REQUEST: "Correct the option or argument that the message names.",
    Reason.UNKNOWN_MODE: "Use a mode that `calabash run --help` lists.",
    Reason.NOT_FOUND: "Check the name; list the objects of this kind.",
    Reason.NOT_PERMITTED: "Ask an administrator for the role that the message names, or work as another user.",
    Reason.NOT_AUTHENTICATED: "Log in again, or use a token that has not ended or been revoked.",
    Reason.CONFLICT: "Read the object again, and repeat the operation if it is still needed.",
    Reason.POOL_DOWN: "Start the pool with `calabash up`; if it runs, check CALABASH_HOME and the pool's log.",
    Reason.POOL_RUNNING: "Stop the pool or server first.",
    Reason.STORE_NEWER: "Use the newer version, or restore a backup of the older one.",
    Reason.STORE_UNAVAILABLE: "Check that the database runs and that its address and permissions are right.",
    Reason.STORE_DAMAGED: "Restore a backup.",
    Reason.DISK_FULL: "Free space on the file system that the message names.",
    Reason.OVERLOADED: "Repeat the request later; raise the limit that the message names if it happens often.",
    Reason.HOST_FAILED: "Look at the cause in the message and in the log of the daemon.",
    Reason.BAD_FILE: "Correct the file at the line or field that the message names.",
    Reason.UNSUPPORTED: "Use another mode, device or version; the message says what is missing.",
    Reason.API_DOWN: "Check the API server or daemon; controllers repeat the operation themselves.",
    Reason.KUBELET_DOWN: "Check the kubelet of the node; the agent registers again when it is back.",
    Reason.FOREIGN_PLUGIN: "Remove the other device plugin from the node.",
    Reason.UNREACHABLE: "Check address, port, firewall and certificate of the host that the message names.",
    Reason.VERSION_MISMATCH: "Use the versions that the message names for both; see the page of versions.",
    Reason.NO_DEVICES: "Request fewer devices for each pod or program, or add devices to a node.",
    Reason.TOO_LARGE: "Request less; waiting does not help.",
    Reason.NO_CAPACITY: "Wait, or request fewer devices.",
    Reason.NO_MEMORY: "Wait, or request less memory.",
    Reason.NO_CORES: "Wait, or request a smaller compute share or a best-effort one.",
    Reason.NO_CPU: "Wait, or request less CPU.",
    Reason.NO_HOST_MEMORY: "Wait, or request less host memory.",
    Reason.SELECTOR_MISMATCH: "Correct the selector; list the devices to see what it is compared with.",
    Reason.MODE_CONFLICT: "Wait until the devices are free, request their present mode, or change the mode of a device.",
    Reason.TAINTED: "Add a toleration to the pod, or remove the taint from the nodes.",
    Reason.TOPOLOGY: "Wait, or request a weaker connection between the devices.",
    Reason.UNHEALTHY: "Look at the health of the device; reset or replace it.",
    Reason.GANG_INCOMPLETE: "Create the missing members, or wait until all of them fit at the same time.",
    Reason.USER_LIMIT: "End or withdraw something, send requests more slowly, or ask an administrator for a higher limit.",
    Reason.QUEUE_OVER_LIMIT: "Wait until the queue releases devices, or ask for a higher limit of the queue.",
    Reason.QUEUE_OVER_DESERVED: "Wait until devices can be borrowed, or ask for a larger guarantee of the queue.",
    Reason.RESERVED: "Wait: the earlier request starts first.",
    Reason.WAITS_FOR_MOVE: "Wait: the pod starts when the moved pods have left.",
    Reason.TIMEOUT: "Repeat the operation, with a longer limit if it has an option for it.",
    Reason.CORDONED: "Wait, or return the node or device to service.",
    Reason.FABRIC_HELD: "Wait for the report of the fabric controller; check that it runs.",
    Reason.PLAN_UNUSED: "Nothing: the pod is planned again. If it repeats, look at the events of the pod.",
    Reason.WRITE_REFUSED: "Correct what the API server refuses; the message has its answer.",
    Reason.RECLAIM: "Nothing: the request waits again. Raise the guarantee of the queue if it happens often.",
    Reason.PREEMPT: "Nothing: the request waits again. Use a higher priority if it must keep its devices.",
    Reason.MOVED: "Nothing: the pod is planned again.",
    Reason.OVER_USE: "Request as much memory as the program needs.",
    Reason.BUDGET_SPENT: "Raise the budget of the tenant, or wait for the next month.",
    Reason.IDLE: "Start the program again when it has work, or ask for a longer idle time.",
    Reason.DRAINED: "Start the program on another device, or wait until the drain is over.",
    Reason.RUN_TIME: "Save intermediate results and start again, or ask for a longer run time.",
    Reason.STRANGER: "Find out who started the process; end it, or start it with a slice.",
    Reason.UNDER_REPORTED: "Ask the tenant; the allocation is charged by the driver's figures.",
    Reason.NEIGHBOUR_FAULT: "Start the program again; use another mode if tenants must not disturb each other.",
    Reason.UNVERIFIED: "Start the program again without changing its MPS environment.",
}
"""What to do about every reason code, for the user or administrator who meets it."""


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
