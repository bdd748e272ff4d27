"""Routes of certificates of load balancers.

A private key is accepted in a request body, and is returned only to a process of this machine.
"""

from __future__ import annotations

from calabash.api import endpoints, requests
from calabash.api import networks as shapes
from calabash.api.replies import Named
from calabash.platform.handlers.audit_middleware import concerns
from calabash.platform.handlers.networks import certificates_of
from calabash.platform.handlers.request import Asked, body_of, caller_of, work
from calabash.transport.web.routing import handles


@handles(endpoints.LIST_CERTIFICATES)
async def list_certificates(request: Asked) -> shapes.CertificateList:
    who = caller_of(request).principal
    return shapes.CertificateList(items=await work(request, certificates_of(request).visible_certificates, who))


@handles(endpoints.PUT_CERTIFICATE)
async def put_certificate(request: Asked) -> Named:
    who, name = caller_of(request).principal, _name(request)
    order = requests.decode(await body_of(request), shapes.CertificateOrder)
    tenant = await work(request, certificates_of(request).put, who, name, order)
    concerns(request, name, tenant=tenant)
    return Named(name=name)


@handles(endpoints.DELETE_CERTIFICATE)
async def delete_certificate(request: Asked) -> Named:
    who, name = caller_of(request).principal, _name(request)
    tenant = await work(request, certificates_of(request).delete, who, name)
    concerns(request, name, tenant=tenant)
    return Named(name=name)


@handles(endpoints.SHOW_CERTIFICATE_KEY)
async def certificate_key(request: Asked) -> shapes.CertificateSecret:
    who = caller_of(request).principal
    return await work(request, certificates_of(request).secret, who, _name(request))


def _name(request: Asked) -> str:
    return requests.decode_query(request.query, shapes.NetworkName).name


CERTIFICATES = (list_certificates, put_certificate, delete_certificate, certificate_key)
