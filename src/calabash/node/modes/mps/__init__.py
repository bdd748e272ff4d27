"""Mode mps: one MPS (Multi-Process Service) daemon for each shared device or MIG instance."""
