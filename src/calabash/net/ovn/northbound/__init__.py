"""Rows of OVN's northbound database: tables, names, drafts, and the changes from one set of rows to another."""
