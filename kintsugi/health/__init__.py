"""How each process shows that it is alive: to the others, to systemd, to the world outside."""
