"""Certificates of load balancers: a VPC's, shown without their keys, which are handed to a process of this machine alone."""

from __future__ import annotations

from calabash.adapters.clock import Clock
from calabash.adapters.store.networks import NetworkTables, StoredCertificate
from calabash.api import networks as shapes
from calabash.model.addresses import check_path
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import NetworkKind, vpc_of
from calabash.model.network_services import LoadBalancer
from calabash.model.tenancy import Principal
from calabash.platform.networks.store import NetworkBook
from calabash.platform.tenancy.store import missing
from calabash.transport.certificates import CertificateFacts, check_pair, read_chain

PER_VPC_MAX = 64


class CertificateBook:
    """Safe for threads. Every method raises CalabashError where the principal may not or it cannot be."""

    def __init__(self, tables: NetworkTables, book: NetworkBook, clock: Clock) -> None:
        self._tables, self._book, self._clock = tables, book, clock

    def seen(self, who: Principal) -> list[shapes.CertificateView]:
        """Those of VPCs that it sees."""
        kept, rights = self._book.state().kept, self._book.rights
        vpcs = {row.name for row in kept.values() if row.kind == NetworkKind.VPC and rights.sees(who, row)}
        return [
            _shown(one, read_chain(one.certificate)) for one in self._tables.certificates() if vpc_of(one.name) in vpcs
        ]

    def put(self, who: Principal, name: str, order: shapes.CertificateOrder) -> str:
        """Keep it, in the place of the one that had its name; whose it is."""
        check_path(name, 2, "certificate name")
        now_s = self._clock.now_s()
        with self._book.held() as state:
            tenant = self._book.rights.require_change(who, state.kept, NetworkKind.LOAD_BALANCER, name)
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
        """Forget it; whose it was."""
        check_path(name, 2, "certificate name")
        with self._book.held() as state:
            tenant = self._book.rights.require_change(who, state.kept, NetworkKind.LOAD_BALANCER, name)
            for balancer in state.networks.of_vpc(vpc_of(name)).all(LoadBalancer).values():
                if named(balancer) == name:
                    raise CalabashError(
                        f"certificate {name} is used by lb {balancer.name}",
                        reason=Reason.CONFLICT,
                        hint=f"give it another, or: calabash lb delete {balancer.name}",
                    )
            if not self._tables.delete_certificate(name):
                raise missing("certificate", name)
        return tenant

    def secret(self, who: Principal, name: str) -> shapes.CertificateSecret:
        """With its key, for a process of this machine."""
        self._book.rights.require_local(who, "read keys of certificates")
        found = next((one for one in self._tables.certificates() if one.name == name), None)
        if found is None:
            raise missing("certificate", name[:200])
        return shapes.CertificateSecret(name=found.name, certificate=found.certificate, key=found.key)

    def require(self, who: Principal, balancer: LoadBalancer) -> None:
        """That the certificate that it names is there. Raises NOT_FOUND."""
        self._book.rights.require_change(who, self._book.state().kept, NetworkKind.LOAD_BALANCER, balancer.name)
        self.require_there(balancer)

    def require_there(self, balancer: LoadBalancer) -> None:
        """The same of one that may be put. Raises NOT_FOUND."""
        name = named(balancer)
        if name and (vpc_of(name) != vpc_of(balancer.name) or all(o.name != name for o in self._tables.certificates())):
            raise CalabashError(
                f"lb {balancer.name}: there is no certificate {name[:200]} in its VPC",
                reason=Reason.NOT_FOUND,
                hint=f"once the VPC is there: calabash certificate put {vpc_of(balancer.name)}/NAME --cert FILE --key FILE",
            )


def named(balancer: LoadBalancer) -> str:
    """Its certificate's name, of its own VPC; "" for none."""
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
