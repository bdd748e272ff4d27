"""Processes on devices that do not belong to an allocation of this pool."""
