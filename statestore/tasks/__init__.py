"""The life of one stream task: intake, budget, restore, commit."""
