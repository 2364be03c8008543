"""What nodes' own checks send and ask, and the tokens with which they do."""
