"""How admission is set up. The chart writes these settings; every one has a default that works."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.kubernetes.dialects.protocol import DEFAULT_SETTINGS, DialectSettings
from calabash.kubernetes.objects.names import SCHEDULER
from calabash.kubernetes.serving_certificates.settings import CertificateSettings

_Port = Annotated[int, Meta(ge=0, le=65535)]
_Name = Annotated[str, Meta(min_length=1, max_length=253)]
_Unit = Annotated[int, Meta(ge=1, le=1 << 20)]

SYSTEM_NAMESPACES = ("kube-system", "kube-public", "kube-node-lease")


class AdmissionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What admission may be told.

    Args:
        namespace: where the product runs; its own pods are left alone.
        exempt_namespaces: namespaces whose pods are left alone besides.
        planner_account, agent_account: service accounts in ``namespace`` that may write plans.
        second_scheduler: pods are given to the product's own scheduler. Without it they keep theirs, and amounts of memory
            and compute, which no node offers, stand in the annotation only.
        scheduler: name of the product's own scheduler.
        shards: pools that have a planner of their own, and a scheduler ``<scheduler>-<pool>``.
        extended_resources: names of extended resources that device classes of ours have (``extendedResourceName``). Devices
            that containers ask for by others of such names are not planned.
        service, secret, configuration: names of the service, of the secret with the certificates, and of both webhook
            configurations.
        host, port: where to listen; "" is every address of both families.
        probe_port: where to answer the kubelet's probes, over plain HTTP.
        client_authority: a file with the certificates of the authorities that sign the API servers' client certificates; ""
            asks for none, and answers every client.
        client_names: common names of these certificates; none: any.
        certificate_dir: a directory with ``tls.crt`` and ``tls.key`` that somebody else keeps current; "" makes its own.
        serving_days, authority_days: how long certificates are valid; they are replaced when a third of it is left.
        leaving_s: how long it goes on answering after it was told to end, until nobody is sent to it any more.
        aliyun_memory_mib, alauda_memory_mib, volcano_memory_mib: MiB in one unit of these systems' memory names.
    """

    namespace: _Name = "calabash-system"
    exempt_namespaces: tuple[_Name, ...] = SYSTEM_NAMESPACES
    planner_account: _Name = "calabash-planner"
    agent_account: _Name = "calabash-agent"
    second_scheduler: bool = True
    scheduler: _Name = SCHEDULER
    shards: tuple[_Name, ...] = ()
    extended_resources: tuple[_Name, ...] = ()
    service: _Name = "calabash-admission"
    secret: _Name = "calabash-admission-tls"  # noqa: S105 - a name
    configuration: _Name = "calabash-admission"
    host: str = ""
    port: _Port = 8443
    probe_port: _Port = 8081
    client_authority: str = ""
    client_names: tuple[_Name, ...] = ()
    certificate_dir: str = ""
    serving_days: Annotated[int, Meta(ge=1, le=825)] = 90
    authority_days: Annotated[int, Meta(ge=2, le=7300)] = 1825
    leaving_s: Annotated[float, Meta(ge=0, le=300)] = 5.0
    aliyun_memory_mib: _Unit = DEFAULT_SETTINGS.aliyun_memory_mib
    alauda_memory_mib: _Unit = DEFAULT_SETTINGS.alauda_memory_mib
    volcano_memory_mib: _Unit = DEFAULT_SETTINGS.volcano_memory_mib

    def scheduler_of(self, pool: str) -> str:
        """The scheduler of pods whose queue is of that pool."""
        return f"{self.scheduler}-{pool}" if pool in self.shards else self.scheduler

    @property
    def certificates(self) -> CertificateSettings:
        """Return the settings of the certificates of this server."""
        return CertificateSettings(
            namespace=self.namespace,
            service=self.service,
            secret=self.secret,
            configuration=self.configuration,
            serving_days=self.serving_days,
            authority_days=self.authority_days,
        )

    @property
    def dialects(self) -> DialectSettings:
        """The part that the dialects need."""
        return DialectSettings(
            aliyun_memory_mib=self.aliyun_memory_mib,
            alauda_memory_mib=self.alauda_memory_mib,
            volcano_memory_mib=self.volcano_memory_mib,
        )

    @property
    def trusted_users(self) -> tuple[str, ...]:
        """Who may write plans: user names as the API server says them."""
        accounts = (self.planner_account, self.agent_account)
        return tuple(f"system:serviceaccount:{self.namespace}:{account}" for account in accounts)
