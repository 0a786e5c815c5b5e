"""What operators do with an application as a whole: each operation plans first and then acts."""
