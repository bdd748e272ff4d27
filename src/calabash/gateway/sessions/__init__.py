"""Sessions of the console: login, the proof that a request holds the session's key, and messages for the next page."""
