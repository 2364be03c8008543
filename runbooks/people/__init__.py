"""What people order of runs, and what they are asked."""
