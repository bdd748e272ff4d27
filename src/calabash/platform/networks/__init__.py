"""The stored objects of tenant networks, and who may change them."""
