"""The shapes of the pool's HTTP API: every request and every reply as a struct, strict where it comes in.

What lives here: the shapes that the API serves, the command line prints, and whatever reads a pool from outside (console,
exporter) shares; the routes as data, from which the reference page and the OpenAPI document are generated. They stand
below the front ends because front ends may not import each other. What never lives here: sockets, permission, decisions.
"""
