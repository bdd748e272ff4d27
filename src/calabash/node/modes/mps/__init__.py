"""Mode mps: one multi-process service for each shared device."""
