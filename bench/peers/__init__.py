"""The systems that Detent is measured against: one adapter each, run in an environment of its own."""
