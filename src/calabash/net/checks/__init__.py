"""Checks of network objects against all other objects: one module for each group of kinds.

Each check gets all objects as they are, the object as requested, and its current version (None: new). It returns the object
with all empty fields completed: kept from the current version, or allocated. It raises CalabashError if the object is invalid.
"""
