"""GPU drivers: what cards a machine has, what they do right now, and what happens to them.

What lives here: the protocol that every vendor's driver is seen through (``protocol``), the registry of vendors
(``vendors``), NVIDIA over NVML (``nvidia``, the only importer of pynvml), and the keeper of simulated nodes
(``sim``). A simulated node is driven by the same NVML module as a real one: only the library behind it differs.
What never lives here: who gets which card.
"""
