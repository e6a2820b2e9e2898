"""SQL statements, built for each dialect."""
