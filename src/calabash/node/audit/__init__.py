"""Audit of tenant-reported GPU time against the driver."""
