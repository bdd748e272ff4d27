"""Commands for tenants, users, usage and invoices."""
