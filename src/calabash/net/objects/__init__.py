"""The object model of tenant networks: collections of objects, their plain-data form, manifests, and mutual acceptance."""
