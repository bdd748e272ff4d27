"""Implementation of ``calabash run``."""
