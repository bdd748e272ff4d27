"""Leader election of planners, and the division of a cluster between planners."""
