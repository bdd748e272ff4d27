"""Commands for tenant networks."""
