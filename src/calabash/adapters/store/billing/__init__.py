"""Tariffs, drafts and invoices in the database."""
