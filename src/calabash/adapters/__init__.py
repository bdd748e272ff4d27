"""The outside world: one package per system, each with the real thing and what stands in for it.

What lives here: the only code that talks to drivers, databases, clocks and hosts, behind small protocols that speak
in the nouns of ``model``. Each third-party client is imported in exactly one of these packages. What never lives
here: a decision. Seams do not import each other.
"""
