"""Control groups, version 2."""
