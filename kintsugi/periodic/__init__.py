"""What is done again and again: polls, comparisons, watches."""
