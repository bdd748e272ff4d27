"""Commands of the kubectl plug-in."""
