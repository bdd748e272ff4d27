"""Routes of tenant networks."""

from __future__ import annotations

from calabash.api import networks as shapes
from calabash.api.replies import Named
from calabash.api.route import Route

_VISIBLE = "only objects that the requesting user may see"
_MEMBERS = "members of the VPC's tenant; uplinks and lines: administrators"
_CERTIFICATES = f"{shapes.PATH}/certificates"

NETWORKS = (
    Route(
        method="GET",
        path=f"{shapes.PATH}/objects",
        summary="List network objects, sorted by kind and name",
        reply=shapes.NetworkObjectList,
        query=shapes.NetworkPage,
        note=_VISIBLE,
    ),
    Route(
        method="GET",
        path=f"{shapes.PATH}/objects/{{kind}}",
        summary="Get a network object",
        reply=shapes.NetworkObjectView,
        query=shapes.NetworkName,
    ),
    Route(
        method="PUT",
        path=f"{shapes.PATH}/objects",
        summary="Create or replace a network object",
        reply=shapes.NetworkObjectView,
        body=shapes.NetworkOrder,
        note=_MEMBERS,
    ),
    Route(
        method="DELETE",
        path=f"{shapes.PATH}/objects/{{kind}}",
        summary="Delete a network object",
        reply=Named,
        query=shapes.NetworkRemoval,
        note=f"{_MEMBERS}; 409 while other objects use it",
    ),
    Route(
        method="POST",
        path=f"{shapes.PATH}/apply",
        summary="Apply a file of network objects in one transaction",
        reply=shapes.NetworkChanges,
        body=shapes.NetworkFile,
        note=_MEMBERS,
    ),
    Route(
        method="GET",
        path=f"{shapes.PATH}/snapshot",
        summary="Get the network objects of all tenants if they are newer than a revision",
        reply=shapes.NetworkSnapshot,
        query=shapes.NetworkSince,
        administrators=True,
        note="objects have `kind`, `name`, `generation` and `spec`",
    ),
    Route(
        method="PUT",
        path=f"{shapes.PATH}/status",
        summary="Report the status of network objects",
        reply=shapes.NetworkReported,
        body=shapes.NetworkReports,
        administrators=True,
        note="reports on objects that do not exist are ignored",
    ),
    Route(
        method="GET",
        path=_CERTIFICATES,
        summary="List certificates of load balancers, without their keys",
        reply=shapes.CertificateList,
        note=_VISIBLE,
    ),
    Route(
        method="PUT",
        path=_CERTIFICATES,
        summary="Store a certificate and its key for load balancers of a VPC",
        reply=Named,
        body=shapes.CertificateOrder,
        query=shapes.NetworkName,
        note="members of the VPC's tenant",
    ),
    Route(
        method="DELETE",
        path=_CERTIFICATES,
        summary="Delete a certificate and its key",
        reply=Named,
        query=shapes.NetworkName,
        note="members of the VPC's tenant; 409 while a load balancer uses it",
    ),
    Route(
        method="GET",
        path=f"{_CERTIFICATES}/key",
        summary="Get a certificate with its key, for the program that terminates TLS",
        reply=shapes.CertificateSecret,
        query=shapes.NetworkName,
        administrators=True,
        note="only for processes of the pool's machine; a token does not suffice",
    ),
)
