"""Who of the pool somebody is that a provider of identities vouches for, and which roles its groups give.

A subject is a user's own where an administrator said so. Otherwise a group that the settings name makes it a user, called
after the provider so that no account of this machine and nobody else is meant. In the places that the settings name, roles are
what the groups say, at each login; other roles are left as they are.
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
from calabash.platform.tenancy.store import TenancyBook

NAME_CHARACTERS_MAX = 63
TRIES = 20

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class VouchedIdentity:
    """What a provider says: ``subject`` is ``ISSUER|SUB``; the rest is how it calls it."""

    subject: str
    name: str = ""
    email: str = ""
    groups: tuple[str, ...] = ()


class Identities:
    """Safe for threads."""

    def __init__(self, tenancy: TenancyBook, settings: OidcSettings | None = None) -> None:
        self._tenancy = tenancy
        self._rules = tuple(settings.groups) if settings else ()
        self._lock = threading.Lock()

    def user(self, who: VouchedIdentity) -> str:
        """The user that it is. Raises NOT_PERMITTED when it is none."""
        with self._lock:
            people = self._tenancy.people()
            roles = self._roles(who.groups)
            found = people.of_subject(who.subject)
            made = found is not None and found.name.endswith(_suffix(who.subject))
            if found is None and roles:
                found = User(name=self._name(who), subject=who.subject, email=who.email)
                self._tenancy.put_user(found)
                log.info("a provider's user is known from now on", user=found.name)
            if found is not None and self._rules:
                self._give(found.name, roles)
                if made and not self._tenancy.people().members.get(found.name):
                    found = None  # it was here by its groups alone
            if found is None:
                raise CalabashError(
                    f"you have no account here: nobody is {who.subject[:300]!r}",
                    reason=Reason.NOT_PERMITTED,
                    hint=f"ask an administrator for: calabash user create NAME --subject '{who.subject[:300]}'",
                )
            return found.name

    def _roles(self, groups: Collection[str]) -> dict[tuple[str, str], Role]:
        """By tenant and project; of several rules for one place the first counts. Places that are not there are left out."""
        people, found = self._tenancy.people(), dict[tuple[str, str], Role]()
        for rule in self._rules:
            there = not rule.tenant or rule.tenant in people.tenants
            if rule.project:
                there = there and (rule.tenant, rule.project) in people.projects
            if rule.group in groups and there:
                found.setdefault((rule.tenant, rule.project), Role(rule.role))
        return found

    def _give(self, user: str, roles: dict[tuple[str, str], Role]) -> None:
        named = {(rule.tenant, rule.project) for rule in self._rules}
        before = {(m.tenant, m.project): m.role for m in self._tenancy.people().members.get(user, ())}
        for tenant, project in sorted(named & before.keys() - roles.keys()):
            self._tenancy.delete_member(user=user, tenant=tenant, project=project)
        for (tenant, project), role in roles.items():
            if before.get((tenant, project)) is not role:
                self._tenancy.put_member(Member(user=user, role=role, tenant=tenant, project=project))

    def _name(self, who: VouchedIdentity) -> str:
        """One that nobody has, and that is no account of this machine."""
        people, suffix = self._tenancy.people(), _suffix(who.subject)
        taken: Sequence[object] = (people.users, people.tenants, people.members)
        plain = re.sub(r"[^a-z0-9._-]", "", who.name.partition("@")[0].lower()).lstrip("0123456789._-") or "user"
        for number in range(1, TRIES):
            name = f"{plain[:24]}{f'-{number}' if number > 1 else ''}{suffix}"
            if account(name) < 0 and not any(name in names for names in taken):  # type: ignore[operator]
                return name
        return f"{plain[:12]}-{hashlib.sha256(who.subject.encode()).hexdigest()[:12]}{suffix}"


def _suffix(subject: str) -> str:
    """``@HOST`` of the provider, short enough for a name."""
    host = re.sub(r"[^a-z0-9.-]", "", re.split("[/:|]", subject.partition("//")[2])[0].lower())
    return f"@{host[-(NAME_CHARACTERS_MAX - 26 - 4) :].lstrip('.-') or 'oidc'}"
