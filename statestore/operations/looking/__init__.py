"""Looking at stores beside their owners: snapshots, and the files of those who stopped."""
