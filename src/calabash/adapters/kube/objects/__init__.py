"""Types of Kubernetes objects, with the fields that the product uses."""
