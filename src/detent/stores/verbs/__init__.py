"""Single verbs of the store, each in a transaction of its own."""
