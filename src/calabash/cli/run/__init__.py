"""`calabash run`."""
