"""What a processor holds: transactional stores, their serdes and specs."""
