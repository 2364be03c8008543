"""Main power by the nodes' management controllers."""
