"""DRA driver of a node: prepare, reconcile and report resource claims."""
