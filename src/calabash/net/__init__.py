"""Tenant networks as functions: desired objects to rows of OVN's northbound database, and what differs. Pure."""
