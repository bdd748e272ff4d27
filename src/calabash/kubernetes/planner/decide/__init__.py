"""Decisions of the planner: events in, actions out, without input or output."""
