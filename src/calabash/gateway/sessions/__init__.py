"""Sessions of the console."""
