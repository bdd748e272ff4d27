"""Users of the console in its tests: one of each role."""

from __future__ import annotations

ROLES = {
    "ada": ("admin", ""),
    "ola": ("operator", ""),
    "vera": ("viewer", ""),
    "tom": ("tenant-admin", "vision"),
    "mia": ("member", "vision"),
    "lea": ("viewer", "vision"),
}
# Accounts that exist on every Debian and run nothing; jobs of the users run as them.
LOGINS = {"ada": "games", "ola": "news", "vera": "man", "tom": "lp", "mia": "nobody", "lea": "mail"}
PAGES = (
    "/", "/devices", "/devices/0", "/workloads", "/jobs", "/waiting", "/queues", "/tenants", "/tenants/vision", "/users",
    "/tokens", "/simulator", "/usage", "/invoices", "/tariffs", "/audit", "/notifications",
    "/networks", "/networks/red",
)  # fmt: skip
