"""Name under which the planner writes objects: as field manager, and as source of events."""

COMPONENT = "calabash-planner"
