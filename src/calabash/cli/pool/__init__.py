"""Commands for the pool of this machine."""
