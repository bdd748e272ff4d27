"""The binder of one machine."""
