"""Devices of one node: inventory, settings, polling, probes and recovery."""
