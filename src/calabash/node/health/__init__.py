"""Health of devices: readings, rules, policy, stored state and notices."""
