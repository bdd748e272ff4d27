"""Status of networks: progress of changes, conditions of objects, health of daemons, and hold-down of gateway hosts."""
