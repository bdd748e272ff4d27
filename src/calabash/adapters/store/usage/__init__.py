"""Usage records in the database."""
