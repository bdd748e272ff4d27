"""Routes of tenant networks."""

from __future__ import annotations

from calabash.api import networks as shapes
from calabash.api.replies import Named
from calabash.api.route import Route

_SEEN = "only what whoever asks may see"
_MEMBERS = "members of the VPC's tenant; uplinks and lines: administrators"
_CERTIFICATES = f"{shapes.PATH}/certificates"

NETWORKS = (
    Route(
        method="GET",
        path=f"{shapes.PATH}/objects",
        summary="objects of networks, by kind and name",
        reply=shapes.NetworkObjectList,
        query=shapes.NetworkPage,
        note=_SEEN,
    ),
    Route(
        method="GET",
        path=f"{shapes.PATH}/objects/{{kind}}",
        summary="an object of a network",
        reply=shapes.NetworkObjectView,
        query=shapes.NetworkName,
    ),
    Route(
        method="PUT",
        path=f"{shapes.PATH}/objects",
        summary="creates an object, or changes it to what is said",
        reply=shapes.NetworkObjectView,
        body=shapes.NetworkOrder,
        note=_MEMBERS,
    ),
    Route(
        method="DELETE",
        path=f"{shapes.PATH}/objects/{{kind}}",
        summary="removes an object",
        reply=Named,
        query=shapes.NetworkRemoval,
        note=f"{_MEMBERS}; 409 while something uses it",
    ),
    Route(
        method="POST",
        path=f"{shapes.PATH}/apply",
        summary="makes objects what a file says, in one step",
        reply=shapes.NetworkChanges,
        body=shapes.NetworkFile,
        note=_MEMBERS,
    ),
    Route(
        method="GET",
        path=f"{shapes.PATH}/snapshot",
        summary="all objects of all tenants, when they are later than a revision",
        reply=shapes.NetworkSnapshot,
        query=shapes.NetworkSince,
        administrators=True,
        note="objects have `kind`, `name`, `generation` and `spec`",
    ),
    Route(
        method="PUT",
        path=f"{shapes.PATH}/status",
        summary="says how far objects have been carried out",
        reply=shapes.NetworkReported,
        body=shapes.NetworkReports,
        administrators=True,
        note="what is not there is left out",
    ),
    Route(
        method="GET",
        path=_CERTIFICATES,
        summary="certificates of load balancers, without their keys",
        reply=shapes.CertificateList,
        note=_SEEN,
    ),
    Route(
        method="PUT",
        path=_CERTIFICATES,
        summary="keeps a certificate and its key for load balancers of a VPC",
        reply=Named,
        body=shapes.CertificateOrder,
        query=shapes.NetworkName,
        note="members of the VPC's tenant",
    ),
    Route(
        method="DELETE",
        path=_CERTIFICATES,
        summary="forgets a certificate and its key",
        reply=Named,
        query=shapes.NetworkName,
        note="members of the VPC's tenant; 409 while a load balancer has it",
    ),
    Route(
        method="GET",
        path=f"{_CERTIFICATES}/key",
        summary="a certificate with its key, for the program that ends TLS with it",
        reply=shapes.CertificateSecret,
        query=shapes.NetworkName,
        administrators=True,
        note="processes of the pool's machine alone: no token is enough",
    ),
)
