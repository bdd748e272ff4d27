"""Certificates of load balancers, stored per VPC. Their private keys are returned only to processes of this machine."""

from __future__ import annotations

from calabash.adapters.clock import Clock
from calabash.adapters.store.networks import NetworkTables, StoredCertificate
from calabash.api import networks as shapes
from calabash.model.addresses import check_path
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import NetworkKind, vpc_of
from calabash.model.network_services import LoadBalancer
from calabash.model.tenancy import Principal
from calabash.platform.networks.store import NetworkStore
from calabash.platform.tenancy.store import missing
from calabash.transport.certificates import CertificateFacts, check_pair, read_chain

PER_VPC_MAX = 64


class CertificateStore:
    """Stored certificates of load balancers. Safe for threads.

    Every method raises CalabashError if the principal lacks permission or the change is invalid.
    """

    def __init__(self, tables: NetworkTables, network_store: NetworkStore, clock: Clock) -> None:
        self._tables, self._network_store, self._clock = tables, network_store, clock

    def visible_certificates(self, who: Principal) -> list[shapes.CertificateView]:
        """Return the certificates of the VPCs that the principal may see."""
        kept, rights = self._network_store.state().kept, self._network_store.rights
        vpcs = {row.name for row in kept.values() if row.kind == NetworkKind.VPC and rights.sees(who, row)}
        return [
            _shown(one, read_chain(one.certificate)) for one in self._tables.certificates() if vpc_of(one.name) in vpcs
        ]

    def put(self, who: Principal, name: str, order: shapes.CertificateOrder) -> str:
        """Store a certificate, replacing one of the same name; return its tenant. Raises CalabashError."""
        check_path(name, 2, "certificate name")
        now_s = self._clock.now_s()
        with self._network_store.held() as state:
            tenant = self._network_store.rights.require_change(who, state.kept, NetworkKind.LOAD_BALANCER, name)
            check_pair(order.certificate, order.key, now_s=now_s)
            others = [o for o in self._tables.certificates() if vpc_of(o.name) == vpc_of(name) and o.name != name]
            if len(others) >= PER_VPC_MAX:
                raise CalabashError(
                    f"VPC {vpc_of(name)} has {len(others)} certificates", reason=Reason.USER_LIMIT, hint="delete some"
                )
            self._tables.put_certificate(
                StoredCertificate(name=name, certificate=order.certificate, key=order.key, changed_at=now_s)
            )
        return tenant

    def delete(self, who: Principal, name: str) -> str:
        """Delete a certificate; return its tenant. Raises CONFLICT if a load balancer uses it, NOT_FOUND if there is none."""
        check_path(name, 2, "certificate name")
        with self._network_store.held() as state:
            tenant = self._network_store.rights.require_change(who, state.kept, NetworkKind.LOAD_BALANCER, name)
            for balancer in state.networks.of_vpc(vpc_of(name)).all(LoadBalancer).values():
                if certificate_name(balancer) == name:
                    raise CalabashError(
                        f"certificate {name} is used by lb {balancer.name}",
                        reason=Reason.CONFLICT,
                        hint=f"give it another, or: calabash net lb delete {balancer.name}",
                    )
            if not self._tables.delete_certificate(name):
                raise missing("certificate", name)
        return tenant

    def secret(self, who: Principal, name: str) -> shapes.CertificateSecret:
        """Return a certificate and its key to a process of this machine. Raises NOT_PERMITTED, NOT_FOUND."""
        self._network_store.rights.require_local(who, "read keys of certificates")
        found = next((one for one in self._tables.certificates() if one.name == name), None)
        if found is None:
            raise missing("certificate", name[:200])
        return shapes.CertificateSecret(name=found.name, certificate=found.certificate, key=found.key)

    def require(self, who: Principal, balancer: LoadBalancer) -> None:
        """Raise CalabashError if the principal may not change the load balancer; also calls ``require_there``."""
        self._network_store.rights.require_change(
            who, self._network_store.state().kept, NetworkKind.LOAD_BALANCER, balancer.name
        )
        self.require_there(balancer)

    def require_there(self, balancer: LoadBalancer) -> None:
        """Raise NOT_FOUND if the load balancer names a certificate that does not exist in its VPC; checks no permission."""
        name = certificate_name(balancer)
        if name and (vpc_of(name) != vpc_of(balancer.name) or all(o.name != name for o in self._tables.certificates())):
            raise CalabashError(
                f"lb {balancer.name}: there is no certificate {name[:200]} in its VPC",
                reason=Reason.NOT_FOUND,
                hint=f"when the VPC exists: calabash net certificate put {vpc_of(balancer.name)}/NAME --cert FILE --key FILE",
            )


def certificate_name(balancer: LoadBalancer) -> str:
    """Return the full name VPC/NAME of a load balancer's certificate; "" if it has none."""
    if not balancer.certificate or "/" in balancer.certificate:
        return balancer.certificate
    return f"{vpc_of(balancer.name)}/{balancer.certificate}"


def _shown(one: StoredCertificate, facts: CertificateFacts) -> shapes.CertificateView:
    return shapes.CertificateView(
        name=one.name,
        subject=facts.subject,
        names=list(facts.names),
        expires_at=facts.expires_at,
        sha256=facts.sha256,
        changed_at=one.changed_at,
    )
