"""HTTP interfaces of the planner: scheduler extender, probes and metrics."""
