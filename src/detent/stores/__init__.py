"""The databases.  One verb, one transaction; rows in and out; no rule beyond guards and uniqueness."""
