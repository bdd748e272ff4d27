"""State of the planner: pods, claims, queues, gangs, budgets and requests."""
