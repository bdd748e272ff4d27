"""Invoices as documents for people: HTML and PDF, from what the API shows of them.

What lives here: their layout, escaping, and fonts. Whatever a name holds, it is text in the document and nothing else.
"""
