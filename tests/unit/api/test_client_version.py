"""The version that a client states is checked, except for requests that keep or end what a server has granted."""

from __future__ import annotations

import pytest

from calabash.api import endpoints, lease_endpoints
from calabash.api.client_version import ANY_VERSION, check_client_version
from calabash.model.errors import CalabashError, Reason


def test_request_without_a_version_is_served() -> None:
    check_client_version("", "POST", endpoints.ALLOCATE.path, server="the pool")


@pytest.mark.parametrize("endpoint", [endpoints.ALLOCATE, endpoints.LIST_QUEUES, lease_endpoints.REQUEST_LEASE])
def test_request_of_another_minor_version_is_refused(endpoint: endpoints.Endpoint) -> None:
    with pytest.raises(CalabashError, match="supports clients of versions") as caught:
        check_client_version("99.0.0", endpoint.method, endpoint.path, server="the pool")
    assert caught.value.reason is Reason.VERSION_MISMATCH


def test_requests_of_running_programs_and_for_a_shutdown_are_served_for_each_version() -> None:
    for method, path in ANY_VERSION:
        check_client_version("99.0.0", method, path, server="the pool")
    assert ("POST", endpoints.RENEW_ALLOCATION.path) in ANY_VERSION
    assert ("POST", lease_endpoints.RENEW_LEASE.path) in ANY_VERSION
    assert ("POST", endpoints.ALLOCATE.path) not in ANY_VERSION
