"""HTTP API routes of the platform, one module for each kind of object.

Handlers decode requests, run the work in a thread, and encode replies and errors as HTTP statuses. Permission checks and
decisions are in the services that they call.
"""
