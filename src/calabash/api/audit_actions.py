"""Actions of the audit log in words: ``PUT /v1/queues/prod`` is ``set queue`` of ``prod``."""

from __future__ import annotations

from urllib.parse import unquote

from calabash.api import endpoints
from calabash.api.endpoints import Endpoint

_VERBS = {"GET": "read", "PUT": "set", "POST": "create", "DELETE": "delete"}
_NOUNS = {
    "allocations": "allocation",
    "certificates": "certificate",
    "devices": "device",
    "faults": "fault",
    "invoices": "invoice",
    "jobs": "job",
    "members": "role",
    "notifications": "notification",
    "objects": "network object",
    "places": "server port",
    "projects": "project",
    "queues": "queue",
    "sessions": "session",
    "tariffs": "tariff",
    "tenants": "tenant",
    "tokens": "token",
    "users": "user",
}
# Endpoints whose words do not follow from the method and the path.
_PHRASES = {
    endpoints.ALLOCATE: "request slice",
    endpoints.RELEASE: "release allocation",
    endpoints.CHANGE_QUEUE: "move request to queue",
    endpoints.REPORT_START: "start program",
    endpoints.RENEW_ALLOCATION: "renew allocation",
    endpoints.SET_DEVICE_MODE: "set device mode",
    endpoints.SET_DEVICE: "set device",
    endpoints.PLAN_MIG: "plan MIG instances",
    endpoints.APPLY_MIG: "apply MIG layout",
    endpoints.SHUT_DOWN: "stop pool",
    endpoints.ADD_MEMBER: "grant role",
    endpoints.REMOVE_MEMBER: "revoke role",
    endpoints.DELETE_TOKEN: "revoke token",
    endpoints.CREATE_SESSION: "log in",
    endpoints.END_SESSION: "log out",
    endpoints.INJECT_FAULT: "inject fault",
    endpoints.DRAFT_INVOICES: "draft invoices",
    endpoints.STOP_JOB: "stop job",
    endpoints.APPLY_NETWORKS: "apply network objects",
    endpoints.REPORT_NETWORK_STATUS: "report network status",
    endpoints.REPORT_FABRIC_STATUS: "report fabric status",
    endpoints.HOLD_SERVER_PORT: "hold server port",
    endpoints.RELEASE_SERVER_PORT: "release server port",
    endpoints.VERIFY_AUDIT: "verify audit log",
    endpoints.LIST_AUDIT: "read audit log",
    endpoints.SHOW_CERTIFICATE_KEY: "read certificate key",
    endpoints.EXPLAIN: "explain allocation",
    endpoints.LIST_INVOICE_ITEMS: "read invoice items",
}
# Actions of the pool itself.
_OTHER_ACTIONS = {"restore": "restore backup", "stranger": "use device without slice"}
_ENDPOINTS = tuple(value for value in vars(endpoints).values() if isinstance(value, Endpoint))


def action_in_words(action: str, target: str) -> tuple[str, str]:
    """Return the action of a line of the audit log as a verb with its noun, and the name of the object.

    Actions that are no HTTP requests and have no words of their own are returned as they are.

    Args:
        action: the HTTP method, or another action.
        target: the path, followed by a space and the name of the object if the path does not have it, or another target.
    """
    path, _, concerned = target.partition(" ")
    for endpoint in _ENDPOINTS:
        if endpoint.method == action and (names := _matched(endpoint, path)) is not None:
            return phrase_of(endpoint), " ".join([*names, *([concerned] if concerned else [])])
    return _OTHER_ACTIONS.get(action, action), target


def phrase_of(endpoint: Endpoint) -> str:
    """Return the words for a request to an endpoint, such as ``drain device``."""
    if endpoint in _PHRASES:
        return _PHRASES[endpoint]
    segments = endpoint.path.split("/")[2:]
    fixed = [segment for segment in segments if segment[:1] != "{"]
    noun = _NOUNS.get(fixed[-1], fixed[-1])
    if endpoint.method == "GET" and segments[-1][:1] != "{":
        noun = fixed[-1]  # a list
    if len(fixed) > 1 and fixed[-1] not in _NOUNS and segments[-2][:1] == "{":
        return f"{fixed[-1]} {_NOUNS.get(fixed[-2], fixed[-2])}"
    return f"{_VERBS[endpoint.method]} {noun}"


def _matched(endpoint: Endpoint, path: str) -> list[str] | None:
    """Return the values of the variable segments of a path; None if the path is of another endpoint."""
    expected, found = endpoint.path.split("/"), path.split("/")
    if endpoint.slashes and len(found) > len(expected):
        found = [*found[: len(expected) - 1], "/".join(found[len(expected) - 1 :])]
    if len(expected) != len(found):
        return None
    names = []
    for one, other in zip(expected, found, strict=True):
        if one[:1] == "{":
            names.append(unquote(other))
        elif one != other:
            return None
    return names
