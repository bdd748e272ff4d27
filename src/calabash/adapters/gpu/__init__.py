"""GPU drivers: the cards of a machine, their current state, and their events.

``protocol`` is the interface of every vendor's driver, ``vendors`` the registry of vendors, ``nvidia`` the
implementation over NVML (the only importer of pynvml besides ``coherent_memory``), and ``sim`` manages simulated nodes.
A simulated node is driven by the same NVML code as a real one; only the loaded library differs. Which request gets
which card is decided elsewhere.
"""
