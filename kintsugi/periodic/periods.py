"""How often the beat calls what has a period of its own. The settings read it: no Django here."""

from __future__ import annotations

from datetime import timedelta

# A poll comes at most this much late; each look for what is due is a few statements.
POLL_DUE = timedelta(seconds=5)
# A dead switch silences its machines within two rounds of polls: Slurm is asked well before that.
ASK_REACH = timedelta(seconds=10)
# As often as each process writes that it is alive.
OWN_HEALTH = timedelta(seconds=10)
# Links are polled every 60 s: sooner there is nothing new.
COMPARE = timedelta(minutes=1)
# slurmctld forgets an ended job after MinJobAge (300 s by default): a look each minute sees each
# end several times.
UPDATE_JOBS = timedelta(minutes=1)
# While an incident is open whose jobs nobody has counted. A storm opens incidents every second, and
# squeue takes slurmctld's locks: no more than six looks a minute.
UPDATE_JOBS_AT_ONCE = timedelta(seconds=10)
# As often as Slurm's nodes are polled.
LOOK_AT_NODES = timedelta(minutes=1)
# While a run or an incident is open: what a person does to a node meanwhile is seen within seconds.
LOOK_AT_NODES_AT_ONCE = timedelta(seconds=5)
# What looks between have seen changed is recorded by them.
RECORD_ACTS = timedelta(minutes=1)
FOLLOW_RESERVATIONS = timedelta(minutes=1)
# A site's two years end one day after the other: an hour's share is small.
PRUNE_HISTORY = timedelta(hours=1)
