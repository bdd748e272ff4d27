"""Calabash: pools GPUs, cuts them to size, enforces the size, schedules, accounts."""

__version__ = "0.2.0"
