"""Health of devices: the state machine, the rules that derive faults from readings, policy, and stored state."""
