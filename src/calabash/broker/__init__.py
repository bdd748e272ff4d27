"""Cards for programs on other machines: the broker beside a pool, what it hands out, and what a client keeps of it.

What lives here: tokens and the keys that sign them, filters of cards, leases, the one port on which both programs and
their command lines arrive, and the client's side of it. A lease is one brokered allocation of the pool, asked through the
pool's API as any front end asks. What never lives here: which card is given to whom (the pool's scheduler), what a program's
calls become (``native/remote``), and bytes of sessions: a program's connection is handed to the process that serves it.
"""
