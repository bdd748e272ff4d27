"""Formats that the product writes into and reads from objects of the API server."""
