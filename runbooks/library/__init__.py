"""The runbooks: their YAML files, their reader, and the choice among them."""
