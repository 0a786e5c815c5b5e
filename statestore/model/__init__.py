"""The values everybody shares: ids, records, batches and modes."""
