"""HTTP API of the pool: message types of requests and replies, and routes as data.

The types are shared by the API server, the command line, the web console and the exporter. The reference page and the OpenAPI
document are generated from the types and routes. The package is below the front ends in the import order, because front ends
may not import each other. It has no sockets, permission checks or decisions.
"""
