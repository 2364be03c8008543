"""What steps do and see on a node: looks, tests, drains, loans."""
