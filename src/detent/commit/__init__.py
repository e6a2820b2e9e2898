"""Group commit: the writes of many callers in one transaction."""
