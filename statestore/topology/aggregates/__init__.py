"""Groups of records or rows, and the tables that are folded from them."""
