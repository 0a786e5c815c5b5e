"""Tables made of a stream or of another table, and the updates that they tell."""
