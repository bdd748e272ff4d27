"""The server of remote devices refuses clients of another minor version, except for leases that it has granted."""

from __future__ import annotations

from unittest.mock import MagicMock

from tests.asgi import ask

import calabash
from calabash.api import lease_endpoints
from calabash.api.endpoints import VERSION_HEADER
from calabash.broker.server.handlers import remote_application
from calabash.model.errors import CalabashError, Reason


def test_client_of_another_minor_version_is_refused_and_may_renew_its_lease() -> None:
    verifier = MagicMock()
    verifier.verify.side_effect = CalabashError("the token is not valid", reason=Reason.NOT_PERMITTED)
    application = remote_application(MagicMock(), verifier, stop=MagicMock())
    headers = {VERSION_HEADER: "99.0.0", "Authorization": "Bearer t"}
    refused = ask(application, "GET", lease_endpoints.LIST_LEASES.path, headers=headers)
    assert (refused.status, refused.json()["reason"]) == (409, "version_mismatch")
    assert "the client is calabash 99.0.0; the server is calabash" in refused.json()["message"]
    renewed = ask(application, "POST", lease_endpoints.RENEW_LEASE.at("l-1"), headers=headers)
    same = headers | {VERSION_HEADER: calabash.__version__}
    listed = ask(application, "GET", lease_endpoints.LIST_LEASES.path, headers=same)
    for reply in (renewed, listed):  # the version is served; the token is what these lack
        assert (reply.status, reply.json()["reason"]) == (403, "not_permitted")
