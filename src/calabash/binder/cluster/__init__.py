"""The binder of a cluster."""
