"""Data types of the product: devices, requests, placements, allocations, tenants, networks, reasons and units.

The types are frozen values. They validate themselves when constructed, and parsers turn the text that people type into them.
The package reads no clock, does no I/O and imports no third-party package. Every other package may import it; it imports none.
"""
