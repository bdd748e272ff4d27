"""Checks of network objects against all other objects: one module for each group of kinds.

Each check gets all existing objects, the object as requested, and its current version (None for a new object). It
returns the requested object with all empty fields completed: from the current version, or with newly allocated values.
It raises CalabashError if the object is invalid.
"""
