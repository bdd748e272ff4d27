"""The HTTP API, a module for each kind of thing it speaks of. Thin: every decision is the pool's.

What lives here: routes, what a request is read into, how its answer is waited for, errors as HTTP statuses. What never
lives here: who may do what, decisions, the meaning of amounts.
"""
