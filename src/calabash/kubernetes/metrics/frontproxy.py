"""Authentication of API servers that forward requests to the metrics server, by their client certificates.

An API server authenticates and authorizes the user before it forwards a request. The metrics server therefore checks
only the certificate of the API server. API servers publish the authority of these certificates, and the names in them,
in the ConfigMap ``kube-system/extension-apiserver-authentication``.
"""

from __future__ import annotations

import msgspec

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.core import CONFIG_MAP
from calabash.kubernetes.client_certificates import TrustedClients
from calabash.model.errors import CalabashError, Reason

_NAMESPACE, _NAME = "kube-system", "extension-apiserver-authentication"


def read_front_proxy(client: KubeClient) -> TrustedClients:
    """Read from the ConfigMap which client certificates API servers use.

    Raises:
        CalabashError: the ConfigMap cannot be read or names no authority.
    """
    found = client.get(CONFIG_MAP, _NAME, _NAMESPACE)
    data = found.data if found is not None else {}
    authority = data.get("requestheader-client-ca-file", "")
    if not authority.strip():
        raise CalabashError(
            f"{_NAMESPACE}/{_NAME} names no authority for requests that API servers pass on",
            reason=Reason.NOT_FOUND,
            hint="start API servers with --requestheader-client-ca-file and --proxy-client-cert-file",
        )
    try:
        names = msgspec.json.decode(data.get("requestheader-allowed-names") or "[]", type=tuple[str, ...])
    except msgspec.DecodeError as error:
        raise CalabashError(f"{_NAMESPACE}/{_NAME} cannot be read: {error}") from error
    return TrustedClients(authority, names)
