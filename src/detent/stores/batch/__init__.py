"""A batch of operations in one transaction."""
