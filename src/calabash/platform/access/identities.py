"""Map the identities of an OpenID Connect provider to users of the pool, and their groups to roles.

A subject is the provider's identifier of a person. An administrator may assign a subject to a user. If a subject is
assigned to no user and the settings have a rule for one of its groups, a new user is created. The name of this user
ends in ``@HOST`` of the provider, so it differs from all accounts of this machine. At each login, the user's roles in
the tenants and projects that the rules name are set according to the groups; other roles are unchanged.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import structlog

from calabash.api.gateway import OidcSettings
from calabash.model.errors import CalabashError, Reason
from calabash.model.tenancy import Member, Role, User
from calabash.platform.access.permission import account
from calabash.platform.tenancy.store import TenancyStore

NAME_CHARACTERS_MAX = 63
TRIES = 20

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class VouchedIdentity:
    """Identity that a provider has verified; ``subject`` is ``ISSUER|SUB``, the other fields are the provider's claims."""

    subject: str
    name: str = ""
    email: str = ""
    groups: tuple[str, ...] = ()


class Identities:
    """Users and roles of the subjects of an identity provider. Safe for threads."""

    def __init__(self, tenancy: TenancyStore, settings: OidcSettings | None = None) -> None:
        self._tenancy = tenancy
        self._rules = tuple(settings.groups) if settings else ()
        self._lock = threading.Lock()

    def user(self, who: VouchedIdentity) -> str:
        """Return the user name of an identity; create the user or update its roles according to the group rules.

        Raises NOT_PERMITTED if the subject is assigned to no user and none of its groups has a rule.
        """
        with self._lock:
            people = self._tenancy.people()
            roles = self._roles(who.groups)
            found = people.of_subject(who.subject)
            made = found is not None and found.name.endswith(_suffix(who.subject))
            if found is None and roles:
                found = User(name=self._name(who), subject=who.subject, email=who.email)
                self._tenancy.put_user(found)
                log.info("created a user for a subject of the identity provider", user=found.name)
            if found is not None and self._rules:
                self._set_roles(found.name, roles)
                if made and not self._tenancy.people().members.get(found.name):
                    found = None  # the user was created for its groups, and has no role left
            if found is None:
                raise CalabashError(
                    f"you have no account here: nobody is {who.subject[:300]!r}",
                    reason=Reason.NOT_PERMITTED,
                    hint=f"ask an administrator for: calabash user create NAME --subject '{who.subject[:300]}'",
                )
            return found.name

    def _roles(self, groups: Collection[str]) -> dict[tuple[str, str], Role]:
        """Return the roles that a user gets from its groups by the rules, by tenant and project.

        The first of several rules for one tenant and project applies. Rules for unknown tenants or projects are skipped.
        """
        people, found = self._tenancy.people(), dict[tuple[str, str], Role]()
        for rule in self._rules:
            there = not rule.tenant or rule.tenant in people.tenants
            if rule.project:
                there = there and (rule.tenant, rule.project) in people.projects
            if rule.group in groups and there:
                found.setdefault((rule.tenant, rule.project), Role(rule.role))
        return found

    def _set_roles(self, user: str, roles: dict[tuple[str, str], Role]) -> None:
        """Set the user's roles in all tenants and projects that the rules name; delete those that are not in ``roles``."""
        named = {(rule.tenant, rule.project) for rule in self._rules}
        before = {(m.tenant, m.project): m.role for m in self._tenancy.people().members.get(user, ())}
        for tenant, project in sorted(named & before.keys() - roles.keys()):
            self._tenancy.delete_member(user=user, tenant=tenant, project=project)
        for (tenant, project), role in roles.items():
            if before.get((tenant, project)) is not role:
                self._tenancy.put_member(Member(user=user, role=role, tenant=tenant, project=project))

    def _name(self, who: VouchedIdentity) -> str:
        """Return a name for a new user, made from the claims; no user, tenant or account of this machine has it yet."""
        people, suffix = self._tenancy.people(), _suffix(who.subject)
        taken: Sequence[object] = (people.users, people.tenants, people.members)
        plain = re.sub(r"[^a-z0-9._-]", "", who.name.partition("@")[0].lower()).lstrip("0123456789._-") or "user"
        for number in range(1, TRIES):
            name = f"{plain[:24]}{f'-{number}' if number > 1 else ''}{suffix}"
            if account(name) < 0 and not any(name in names for names in taken):  # type: ignore[operator]
                return name
        return f"{plain[:12]}-{hashlib.sha256(who.subject.encode()).hexdigest()[:12]}{suffix}"


def _suffix(subject: str) -> str:
    """Return the end of the names of a provider's users, ``@HOST``; a long host name is cut at the left."""
    host = re.sub(r"[^a-z0-9.-]", "", re.split("[/:|]", subject.partition("//")[2])[0].lower())
    return f"@{host[-(NAME_CHARACTERS_MAX - 26 - 4) :].lstrip('.-') or 'oidc'}"
