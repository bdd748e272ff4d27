"""Control groups: groups of allocations and of containers, and the devices that a group may open."""
