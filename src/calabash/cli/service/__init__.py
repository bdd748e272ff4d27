"""``calabash service``: the pool of this machine as a systemd service."""
