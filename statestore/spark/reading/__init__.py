"""How the Data Source `transactional_store` reads: options, columns, rows and changes."""
