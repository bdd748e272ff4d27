"""Sessions of the console: login, proof of possession, and messages for the next page."""
