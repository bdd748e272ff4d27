"""Settings of admission. The Helm chart writes them; all have defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from calabash.kubernetes.dialects.protocol import DEFAULT_SETTINGS, DialectSettings
from calabash.kubernetes.gangs.owner import GangOwner, read_owners
from calabash.kubernetes.gangs.table import table_with
from calabash.kubernetes.objects.names import SCHEDULER
from calabash.kubernetes.serving_certificates.settings import CertificateSettings
from calabash.sched import LEVELS_MAX

_Port = Annotated[int, Meta(ge=0, le=65535)]
_Name = Annotated[str, Meta(min_length=1, max_length=253)]
_Unit = Annotated[int, Meta(ge=1, le=1 << 20)]

SYSTEM_NAMESPACES = ("kube-system", "kube-public", "kube-node-lease")


class AdmissionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of admission.

    Args:
        namespace: namespace in which the product is installed. Admission does not review its pods.
        exempt_namespaces: other namespaces whose pods admission does not review.
        planner_account, agent_account: service accounts in ``namespace`` that may write plans.
        second_scheduler: True to give pods that ask for devices to the product's own scheduler. If False, pods keep
            their scheduler. Amounts of memory and compute are then only in the annotation, because a scheduler would
            find no node that offers them.
        scheduler: name of the product's own scheduler.
        shards: names of the pools that have a planner and a scheduler of their own. The scheduler of such a pool is
            called ``<scheduler>-<pool>``.
        extended_resources: values of ``extendedResourceName`` of Calabash's device classes. Devices that containers
            ask for by other extended resource names are not planned.
        service, secret, configuration: names of the Service, of the Secret with the certificates, and of both webhook
            configurations.
        host, port: address on which to serve; host "" is every IPv4 and IPv6 address.
        probe_port: port for the kubelet's probes and for metrics, over plain HTTP.
        client_authority: file with the certificates of the authorities that sign the API servers' client certificates;
            "" to accept every client, and to ask for no certificate.
        client_names: accepted common names of these client certificates; empty to accept all.
        certificate_dir: directory with ``tls.crt`` and ``tls.key`` that another program renews; "" to let the server
            create and renew its own certificate.
        serving_days, authority_days: validity, in days, of the server certificate and of the authority that signs it.
            Each is replaced when a third of its validity is left.
        leaving_s: seconds for which the server still answers after SIGTERM, until API servers no longer use it.
        gang_owners: more kinds of gang owners, in the form of the option ``--owners`` of ``explain-gang``.
        topology_levels: keys of node labels that are levels of the network, outermost first, as the planner has them.
        aliyun_memory_mib, alauda_memory_mib, volcano_memory_mib: MiB in one unit of these systems' memory resources.
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
    gang_owners: list[Any] = []
    topology_levels: Annotated[tuple[_Name, ...], Meta(max_length=LEVELS_MAX)] = ()
    aliyun_memory_mib: _Unit = DEFAULT_SETTINGS.aliyun_memory_mib
    alauda_memory_mib: _Unit = DEFAULT_SETTINGS.alauda_memory_mib
    volcano_memory_mib: _Unit = DEFAULT_SETTINGS.volcano_memory_mib

    def scheduler_of(self, pool: str) -> str:
        """Return the name of the scheduler for pods whose queue is in the pool; "" is no pool."""
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
        """Return the settings of the dialects."""
        return DialectSettings(
            aliyun_memory_mib=self.aliyun_memory_mib,
            alauda_memory_mib=self.alauda_memory_mib,
            volcano_memory_mib=self.volcano_memory_mib,
        )

    @property
    def gang_table(self) -> Mapping[str, GangOwner]:
        """Return the table of gang owners, by ``GangOwner.key``.

        Raises:
            CalabashError: BAD_FILE if an entry of ``gang_owners`` is invalid; the message names the entry and the field.
        """
        return table_with(read_owners(self.gang_owners))

    @property
    def trusted_users(self) -> tuple[str, ...]:
        """Return the names of the users that may write plans, as the API server reports them."""
        accounts = (self.planner_account, self.agent_account)
        return tuple(f"system:serviceaccount:{self.namespace}:{account}" for account in accounts)
