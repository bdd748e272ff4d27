"""Brings pods that ask for devices into one form, and refuses what could never run or was not for its writer to say.

What lives here: what is changed in a pod (``mutate``), what is refused (``validate``), the HTTPS server that API servers
ask (``server``), and the certificates by which they know it (``certificates``, ``trust``). What never lives here: what a
foreign word means (``dialects``), and whether there is room (``planner``).
"""
