"""Who looks at the console in its tests: a user of each role. The administrator is whoever runs the pool."""

from __future__ import annotations

ROLES = {
    "ola": ("operator", ""),
    "vera": ("viewer", ""),
    "tom": ("tenant-admin", "vision"),
    "mia": ("member", "vision"),
    "lea": ("viewer", "vision"),
}
PAGES = (
    "/", "/devices", "/devices/0", "/workloads", "/waiting", "/queues", "/tenants", "/tenants/vision", "/users", "/tokens",
    "/simulator", "/usage", "/invoices", "/tariffs", "/audit", "/notifications",
)  # fmt: skip
