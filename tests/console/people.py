"""Who looks at the console in its tests: a user of each role."""

from __future__ import annotations

ROLES = {
    "ada": ("admin", ""),
    "ola": ("operator", ""),
    "vera": ("viewer", ""),
    "tom": ("tenant-admin", "vision"),
    "mia": ("member", "vision"),
    "lea": ("viewer", "vision"),
}
# Accounts that every Debian has and that run nothing: what their jobs run as.
LOGINS = {"ada": "games", "ola": "news", "vera": "man", "tom": "lp", "mia": "nobody", "lea": "mail"}
PAGES = (
    "/", "/devices", "/devices/0", "/workloads", "/jobs", "/waiting", "/queues", "/tenants", "/tenants/vision", "/users",
    "/tokens", "/simulator", "/usage", "/invoices", "/tariffs", "/audit", "/notifications",
    "/networks", "/networks/red",
)  # fmt: skip
