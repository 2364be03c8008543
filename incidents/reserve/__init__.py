"""Nodes that stand aside: hot spares, lemons, nodes taken away for good."""
