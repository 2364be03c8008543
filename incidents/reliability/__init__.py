"""MTTF, MTTR and their bounds."""
