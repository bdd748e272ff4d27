"""Tariffs, drafts, invoices and their evidence."""
