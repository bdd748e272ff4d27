"""Syntax of the names of tenants, queues, gangs and sharing modes."""

from __future__ import annotations

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/@-]{0,126}\Z"
NAME_HINT = "1 to 127 letters, digits and ._/@-, a letter or digit first"
