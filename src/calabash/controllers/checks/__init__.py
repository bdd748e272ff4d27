"""Connectivity checks of a VPC: probes in its subnets try every promise of its configuration."""
