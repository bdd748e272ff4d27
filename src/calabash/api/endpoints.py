"""Endpoints of the HTTP APIs: the method, the path and the status of success of each route, declared once.

Servers bind their handlers to these endpoints, and clients call them. :mod:`calabash.api.routes` adds the types of the
messages. This module imports almost nothing, because `calabash run` loads it before every program.
"""

from __future__ import annotations

import os

from calabash.model.errors import CalabashError, Reason

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = "/v1"  # all paths begin with it
VERSION_HEADER = "Calabash-Version"  # product version of the client, see calabash.api.client_version
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~@")


def quoted(name: str) -> str:
    """Return a name as one segment of a path, percent-encoded.

    Raises BAD_REQUEST for an empty name, which would name another resource.
    """
    if not name:
        raise CalabashError("a name is empty", reason=Reason.BAD_REQUEST, hint="give a name")
    return _escaped(name)


def _escaped(text: str) -> str:
    return "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in os.fsencode(text))


class Endpoint:
    """One method of one path.

    Args:
        method: HTTP method.
        path: path, with a variable segment as `{name}`.
        status: HTTP status of a successful reply.
        slashes: the last variable segment may contain slashes after decoding, as the names of queues do.
    """

    __slots__ = ("method", "path", "slashes", "status")

    def __init__(self, method: str, path: str, *, status: int = 200, slashes: bool = False) -> None:
        self.method = method
        self.path = path
        self.status = status
        self.slashes = slashes

    def __repr__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the variable segments, in their order."""
        return tuple(part[1:-1] for part in self.path.split("/") if part[:1] == "{")

    def at(self, *values: str, query: Mapping[str, object] | None = None) -> str:
        """Return the target of a request: the path with these values, and the query string, percent-encoded.

        Args:
            values: values of the variable segments, in their order.
            query: parameters of the query string.

        Raises BAD_REQUEST for an empty value, which would name another resource.
        """
        variables = self.variables
        if len(values) != len(variables):
            raise TypeError(f"{self!r} takes {len(variables)} values, not {len(values)}")
        target = self.path
        for variable, value in zip(variables, values, strict=True):
            target = target.replace("{" + variable + "}", quoted(value))
        if query:
            target += "?" + "&".join(f"{name}={_escaped(str(value))}" for name, value in query.items())
        return target


# Routes of the gateway alone.
DOCUMENT = Endpoint("GET", "/v1/openapi.json")
WATCH = Endpoint("GET", "/v1/watch")

# Routes of the pool and of the server of a cluster.
SHOW_STATUS = Endpoint("GET", "/v1/status")
LIST_DEVICES = Endpoint("GET", "/v1/devices")
SHOW_DEVICE = Endpoint("GET", "/v1/devices/{device}")
DRAIN_DEVICE = Endpoint("POST", "/v1/devices/{device}/drain")
UNDRAIN_DEVICE = Endpoint("POST", "/v1/devices/{device}/undrain")
SET_DEVICE_MODE = Endpoint("POST", "/v1/devices/{device}/mode")
SET_DEVICE = Endpoint("POST", "/v1/devices/{device}/settings")
TEST_DEVICE = Endpoint("POST", "/v1/devices/{device}/test")
RESET_DEVICE = Endpoint("POST", "/v1/devices/{device}/reset")
LIST_MIG = Endpoint("GET", "/v1/mig")
PLAN_MIG = Endpoint("POST", "/v1/mig/plan")
APPLY_MIG = Endpoint("POST", "/v1/mig/apply")
LIST_ALLOCATIONS = Endpoint("GET", "/v1/allocations")
ALLOCATE = Endpoint("POST", "/v1/allocations", status=201)
REPORT_START = Endpoint("POST", "/v1/allocations/{allocation}/started")
RENEW_ALLOCATION = Endpoint("POST", "/v1/allocations/{allocation}/keep")
CHANGE_QUEUE = Endpoint("PUT", "/v1/allocations/{allocation}/queue/{name}", slashes=True)
RELEASE = Endpoint("DELETE", "/v1/allocations/{allocation}")
SHOW_ENVIRONMENT = Endpoint("GET", "/v1/allocations/{allocation}/environment")
EXPLAIN = Endpoint("GET", "/v1/allocations/{allocation}/why")
LIST_QUEUES = Endpoint("GET", "/v1/queues")
PUT_QUEUE = Endpoint("PUT", "/v1/queues/{name}", slashes=True)
DELETE_QUEUE = Endpoint("DELETE", "/v1/queues/{name}", slashes=True)
EXPORT_SCENARIO = Endpoint("GET", "/v1/scenario")
LIST_EVENTS = Endpoint("GET", "/v1/events")
SHUT_DOWN = Endpoint("POST", "/v1/shutdown")
SHOW_COUNTERS = Endpoint("GET", "/v1/counters")
LIST_AUDIT = Endpoint("GET", "/v1/audit")
VERIFY_AUDIT = Endpoint("GET", "/v1/audit/verify")
SHOW_OVERVIEW = Endpoint("GET", "/v1/overview")
LIST_TENANTS = Endpoint("GET", "/v1/tenants")
SHOW_TENANT = Endpoint("GET", "/v1/tenants/{tenant}")
PUT_TENANT = Endpoint("PUT", "/v1/tenants/{tenant}")
DELETE_TENANT = Endpoint("DELETE", "/v1/tenants/{tenant}")
LIST_PROJECTS = Endpoint("GET", "/v1/tenants/{tenant}/projects")
SHOW_PROJECT = Endpoint("GET", "/v1/tenants/{tenant}/projects/{project}")
PUT_PROJECT = Endpoint("PUT", "/v1/tenants/{tenant}/projects/{project}")
DELETE_PROJECT = Endpoint("DELETE", "/v1/tenants/{tenant}/projects/{project}")
LIST_USERS = Endpoint("GET", "/v1/users")
SHOW_USER = Endpoint("GET", "/v1/users/{user}")
PUT_USER = Endpoint("PUT", "/v1/users/{user}")
DELETE_USER = Endpoint("DELETE", "/v1/users/{user}")
ADD_MEMBER = Endpoint("PUT", "/v1/members")
REMOVE_MEMBER = Endpoint("DELETE", "/v1/members")
LIST_TOKENS = Endpoint("GET", "/v1/tokens")
CREATE_TOKEN = Endpoint("POST", "/v1/tokens", status=201)
DELETE_TOKEN = Endpoint("DELETE", "/v1/tokens/{token}")
CREATE_SESSION = Endpoint("POST", "/v1/sessions", status=201)
END_SESSION = Endpoint("DELETE", "/v1/sessions/current")
LIST_QUOTA = Endpoint("GET", "/v1/quota")
SHOW_ME = Endpoint("GET", "/v1/me")
SHOW_SIMULATOR = Endpoint("GET", "/v1/simulator")
INJECT_FAULT = Endpoint("POST", "/v1/simulator/faults")
SHOW_USAGE = Endpoint("GET", "/v1/usage")
LIST_TARIFFS = Endpoint("GET", "/v1/tariffs")
PUT_TARIFF = Endpoint("PUT", "/v1/tariffs")
LIST_INVOICES = Endpoint("GET", "/v1/invoices")
DRAFT_INVOICES = Endpoint("POST", "/v1/invoices", status=201)
SHOW_INVOICE = Endpoint("GET", "/v1/invoices/{number}")
LIST_INVOICE_ITEMS = Endpoint("GET", "/v1/invoices/{number}/items")
VERIFY_INVOICE = Endpoint("GET", "/v1/invoices/{number}/verify")
ISSUE_INVOICE = Endpoint("POST", "/v1/invoices/{number}/issue")
CREDIT_INVOICE = Endpoint("POST", "/v1/invoices/{number}/credit", status=201)
VOID_INVOICE = Endpoint("POST", "/v1/invoices/{number}/void")
LIST_CHANGES = Endpoint("GET", "/v1/changes")
LIST_JOBS = Endpoint("GET", "/v1/jobs")
CREATE_JOB = Endpoint("POST", "/v1/jobs", status=201)
SHOW_JOB = Endpoint("GET", "/v1/jobs/{job}")
STOP_JOB = Endpoint("DELETE", "/v1/jobs/{job}")
LIST_NOTIFICATIONS = Endpoint("GET", "/v1/notifications")
SHOW_NOTIFICATION = Endpoint("GET", "/v1/notifications/{name}")
PUT_NOTIFICATION = Endpoint("PUT", "/v1/notifications/{name}")
DELETE_NOTIFICATION = Endpoint("DELETE", "/v1/notifications/{name}")
TEST_NOTIFICATION = Endpoint("POST", "/v1/notifications/{name}/test")
LIST_NETWORK_OBJECTS = Endpoint("GET", "/v1/networks/objects")
SHOW_NETWORK_OBJECT = Endpoint("GET", "/v1/networks/objects/{kind}")
PUT_NETWORK_OBJECT = Endpoint("PUT", "/v1/networks/objects")
DELETE_NETWORK_OBJECT = Endpoint("DELETE", "/v1/networks/objects/{kind}")
APPLY_NETWORKS = Endpoint("POST", "/v1/networks/apply")
SHOW_NETWORK_SNAPSHOT = Endpoint("GET", "/v1/networks/snapshot")
REPORT_NETWORK_STATUS = Endpoint("PUT", "/v1/networks/status")
LIST_CERTIFICATES = Endpoint("GET", "/v1/networks/certificates")
PUT_CERTIFICATE = Endpoint("PUT", "/v1/networks/certificates")
DELETE_CERTIFICATE = Endpoint("DELETE", "/v1/networks/certificates")
SHOW_CERTIFICATE_KEY = Endpoint("GET", "/v1/networks/certificates/key")
LIST_SERVER_PORTS = Endpoint("GET", "/v1/networks/places")
HOLD_SERVER_PORT = Endpoint("POST", "/v1/networks/places")
RELEASE_SERVER_PORT = Endpoint("DELETE", "/v1/networks/places")
SHOW_FABRIC = Endpoint("GET", "/v1/fabric")
LIST_FABRIC_USES = Endpoint("GET", "/v1/fabric/uses")
REPORT_FABRIC_STATUS = Endpoint("PUT", "/v1/fabric/status")
