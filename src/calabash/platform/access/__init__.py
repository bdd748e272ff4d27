"""Access control: tokens, permissions and visibility."""
