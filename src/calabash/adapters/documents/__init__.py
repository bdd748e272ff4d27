"""Invoices as CSV, HTML and PDF documents, made from the API's view of them.

Layout, escaping and fonts are here. All names are written as plain text, never as markup or formulas.
"""
