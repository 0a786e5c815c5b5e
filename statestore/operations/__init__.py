"""What is done to an application as a whole: a plan first, then the deed."""
