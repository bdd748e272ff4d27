"""Nouns and units: frozen values and the shorthand that people type for them.

What lives here: devices, requests, placements, reasons, units. No behaviour beyond construction, validation and
parsing; no clock, no I/O, no third-party import. Everybody may import this package; it imports nobody.
"""
