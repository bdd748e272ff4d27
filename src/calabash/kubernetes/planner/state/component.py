"""Name under which the planner writes objects: field manager and source of events."""

COMPONENT = "calabash-planner"
