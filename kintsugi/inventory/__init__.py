"""The inventory from outside: discovery, Slurm, host keys, sudoers."""
