"""Slurm's jobs, listed every minute and when an incident opens, and what open incidents cost them. Decides nothing."""

from __future__ import annotations

from datetime import datetime, timedelta

from detectors.job_records import Accounts
from detectors.slurm_queries import SITE
from incidents import impact, job_source, jobs
from runbooks.slurm import Slurm, SlurmError, is_ours

# slurmctld forgets an ended job after MinJobAge (300 s by default): a look each minute sees each end several times.
EVERY = timedelta(minutes=1)
# A storm opens incidents every second, and squeue takes slurmctld's locks: no more than six looks a minute.
AT_ONCE = timedelta(seconds=10)


def due(now: datetime, slurm: Slurm) -> None:
    """Looks when it is time, or at once when an incident has opened whose jobs nobody has counted.

    A Slurm that does not answer holds up each sweep until its time limit: it is not asked sooner.
    """
    is_urgent = not job_source.is_silent() and impact.is_waiting(now)
    if not job_source.claim(now, every=AT_ONCE if is_urgent else EVERY):
        return
    try:
        seen = slurm.recent_jobs(job_source.lately(now))
    except SlurmError as error:
        job_source.refused(str(error))
    else:
        jobs.learn([job for job in seen.records if not is_ours(job.name)], now, whole_of=SITE)
        told = {Accounts.TOLD: True, Accounts.NONE_KEPT: False, Accounts.SILENT: None}[seen.accounts]
        job_source.answered(now, has_accounts=told, complaint=seen.complaint)
    jobs.forget(now)
    impact.assess(now)
