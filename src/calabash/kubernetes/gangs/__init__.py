"""Gangs of pods, derived from the objects that create the pods or that the pods name.

``owner`` has the form of an entry of the table, ``table`` the table of known kinds, ``resolve`` computes the gangs of an
object, ``membership`` finds the gang and the role of a pod, ``explain`` describes the objects of a file.
"""
