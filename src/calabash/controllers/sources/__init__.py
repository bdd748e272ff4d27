"""Sources of networks for controllers, and a local copy that follows their changes."""
