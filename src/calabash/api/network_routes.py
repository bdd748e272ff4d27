"""Routes of tenant networks."""

from __future__ import annotations

from typing import Any

from calabash.api import endpoints
from calabash.api import networks as shapes
from calabash.api.replies import Named
from calabash.api.route import Route

_VISIBLE = "only objects that the requesting user may see"
_MEMBERS = "members of the VPC's tenant; uplinks and lines: administrators"

LIST_NETWORK_OBJECTS = Route(
    endpoint=endpoints.LIST_NETWORK_OBJECTS,
    summary="List network objects, sorted by kind and name",
    reply=shapes.NetworkObjectList,
    query=shapes.NetworkPage,
    note=_VISIBLE,
)
SHOW_NETWORK_OBJECT = Route(
    endpoint=endpoints.SHOW_NETWORK_OBJECT,
    summary="Get a network object",
    reply=shapes.NetworkObjectView,
    query=shapes.NetworkName,
)
PUT_NETWORK_OBJECT = Route(
    endpoint=endpoints.PUT_NETWORK_OBJECT,
    summary="Create or replace a network object",
    reply=shapes.NetworkObjectView,
    body=shapes.NetworkOrder,
    note=_MEMBERS,
)
DELETE_NETWORK_OBJECT = Route(
    endpoint=endpoints.DELETE_NETWORK_OBJECT,
    summary="Delete a network object",
    reply=Named,
    query=shapes.NetworkRemoval,
    note=f"{_MEMBERS}; 409 while other objects use it",
)
APPLY_NETWORKS = Route(
    endpoint=endpoints.APPLY_NETWORKS,
    summary="Apply a file of network objects in one transaction",
    reply=shapes.NetworkChanges,
    body=shapes.NetworkFile,
    note=_MEMBERS,
)
SHOW_NETWORK_SNAPSHOT = Route(
    endpoint=endpoints.SHOW_NETWORK_SNAPSHOT,
    summary="Get the network objects of all tenants if they are newer than a revision",
    reply=shapes.NetworkSnapshot,
    query=shapes.NetworkSince,
    administrators=True,
    note="objects have `kind`, `name`, `generation` and `spec`",
)
REPORT_NETWORK_STATUS = Route(
    endpoint=endpoints.REPORT_NETWORK_STATUS,
    summary="Report the status of network objects",
    reply=shapes.NetworkReported,
    body=shapes.NetworkReports,
    administrators=True,
    note="reports on objects that do not exist are ignored",
)
LIST_CERTIFICATES = Route(
    endpoint=endpoints.LIST_CERTIFICATES,
    summary="List certificates of load balancers, without their keys",
    reply=shapes.CertificateList,
    note=_VISIBLE,
)
PUT_CERTIFICATE = Route(
    endpoint=endpoints.PUT_CERTIFICATE,
    summary="Store a certificate and its key for load balancers of a VPC",
    reply=Named,
    body=shapes.CertificateOrder,
    query=shapes.NetworkName,
    note="members of the VPC's tenant",
)
DELETE_CERTIFICATE = Route(
    endpoint=endpoints.DELETE_CERTIFICATE,
    summary="Delete a certificate and its key",
    reply=Named,
    query=shapes.NetworkName,
    note="members of the VPC's tenant; 409 while a load balancer uses it",
)
SHOW_CERTIFICATE_KEY = Route(
    endpoint=endpoints.SHOW_CERTIFICATE_KEY,
    summary="Get a certificate with its key, for the program that terminates TLS",
    reply=shapes.CertificateSecret,
    query=shapes.NetworkName,
    administrators=True,
    note="only for processes of the pool's machine; a token does not suffice",
)

NETWORKS: tuple[Route[Any], ...] = (
    LIST_NETWORK_OBJECTS,
    SHOW_NETWORK_OBJECT,
    PUT_NETWORK_OBJECT,
    DELETE_NETWORK_OBJECT,
    APPLY_NETWORKS,
    SHOW_NETWORK_SNAPSHOT,
    REPORT_NETWORK_STATUS,
    LIST_CERTIFICATES,
    PUT_CERTIFICATE,
    DELETE_CERTIFICATE,
    SHOW_CERTIFICATE_KEY,
)
