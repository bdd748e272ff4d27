"""The gateway: the pool's API and the console over TCP, in a process of its own that has no rights and no database.

What lives here: connections, TLS, sessions as cookies, the forwarding of every route to the pool with the token of whoever
asks, pages made of the pool's typed replies, bounds on what one address or one token may take. What never lives here: a
decision about who may do what, or any state that a restart would lose.
"""
