"""What the programs and files of a node print, taken apart. Pure."""
