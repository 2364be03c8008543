"""What the doors to the world may answer instead of doing: Slurm, management controllers, nodes."""

from __future__ import annotations


class WorldError(Exception):
    """It was not done, or there was no answer: what was asked of whom, its words, what to do.

    What was asked may have been done all the same: look before asking again.
    """


class WorldRefusal(WorldError):
    """It was not asked, or cannot be had by asking again."""
