"""The product version that a client states in each request (``VERSION_HEADER``), as a server checks it.

A request without the header is served: programs of other authors use the routes below ``/v1``, whose meaning does not
change within a version of the API. Requests in ``ANY_VERSION`` are served for every version. They show and stop a
server, and keep and end what it has granted, so that an upgrade of the server disturbs no program of an older client.
"""

from __future__ import annotations

from calabash.api import endpoints, lease_endpoints
from calabash.model.versions import require_client

ANY_VERSION = frozenset(
    (one.method, one.path)
    for one in (
        endpoints.SHOW_STATUS,
        endpoints.SHUT_DOWN,
        endpoints.REPORT_START,
        endpoints.RENEW_ALLOCATION,
        endpoints.RELEASE,
        lease_endpoints.SHOW_SERVER,
        lease_endpoints.RENEW_LEASE,
        lease_endpoints.END_LEASE,
        lease_endpoints.SHUT_DOWN_SERVER,
    )
)


def check_client_version(stated: str, method: str, path: str, *, server: str) -> None:
    """Raise VERSION_MISMATCH if the server refuses a request because of the version of its client.

    Args:
        stated: value of ``VERSION_HEADER``; "" if the request has none.
        path: path of the endpoint, with its variable segments as ``{name}``.
        server: name of the server in the error, as in "the pool".
    """
    if stated and (method, path) not in ANY_VERSION:
        require_client(stated, server=server)
