"""Endpoints of servers of remote GPUs, which lease devices to sessions on other machines."""

from __future__ import annotations

from calabash.api.endpoints import Endpoint

SHOW_SERVER = Endpoint("GET", "/v1/server")
LIST_LEASES = Endpoint("GET", "/v1/leases")
REQUEST_LEASE = Endpoint("POST", "/v1/leases", status=201)
RENEW_LEASE = Endpoint("POST", "/v1/leases/{lease}/renew")
END_LEASE = Endpoint("DELETE", "/v1/leases/{lease}")
DRAIN_SERVER = Endpoint("POST", "/v1/drain")
SHUT_DOWN_SERVER = Endpoint("POST", "/v1/shutdown")
