"""Python values as JSON text: which types can be stored, and how they come back."""
