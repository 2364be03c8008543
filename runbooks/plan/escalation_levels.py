"""The rungs of the ladder, from the mildest: each is the cure that a step attempts. Pure.

A rung that was tried on a part for a fault and did not cure it counts; what follows from the counts
is the ladder's.
"""

from __future__ import annotations

from detectors.faults import Recovery

# In rising order: what costs the node least comes first (docs/runbooks.md, The ladder).
RUNGS = (
    Recovery.GPU_RESET,
    Recovery.NODE_RESTART,
    Recovery.COLD_CYCLE,
    Recovery.VENDOR_REPLACEMENT,
)
# The steps that take the node's hardware through a change: what they touched is verified before it
# takes jobs.
STEPS_OF_RUNGS = ("reset_gpu", "reboot", "cold_cycle")
# With these all that repair the node: its jobs have ended before, and the fault is confirmed.
STEPS_THAT_REPAIR = (*STEPS_OF_RUNGS, "restart_units")
# Those after which nobody hands a node back unverified: while a part is waited for, hands may be in
# the machine.
STEPS_THAT_TOUCH = (*STEPS_THAT_REPAIR, "await_part")
# Of these the node's operating system starts anew.
STEPS_THAT_BOOT = ("reboot", "cold_cycle")
