"""Access to systems outside the process: one package per system, with its real and its simulated implementation.

This is the only code that talks to drivers, databases, clocks and hosts. Each package offers small protocols in terms
of ``model``. Each third-party client is imported in exactly one of these packages. Adapters take no decisions and do
not import each other.
"""
