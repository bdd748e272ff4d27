"""Jobs: commands that the pool runs for users of its machine."""
