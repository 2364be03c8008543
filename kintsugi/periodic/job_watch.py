"""Slurm's jobs, listed every minute and when an incident opens, and what open incidents cost them.
Decides nothing."""

from __future__ import annotations

from datetime import datetime, timedelta

from detectors.slurm.job_records import Accounts
from detectors.slurm.queries import SITE
from incidents.impact import impact
from incidents.jobs import job_source, jobs
from kintsugi.periodic import periods
from runbooks.slurm.protocol import SlurmError, SlurmReader, is_ours

_HAS_ACCOUNTS = {Accounts.TOLD: True, Accounts.NONE_KEPT: False, Accounts.SILENT: None}


def compute_period(now: datetime) -> timedelta:
    """A minute, or less while an incident is open whose jobs nobody has counted.

    A Slurm that does not answer is not asked sooner.
    """
    is_urgent = not job_source.is_silent() and impact.is_waiting(now)
    return periods.UPDATE_JOBS_AT_ONCE if is_urgent else periods.UPDATE_JOBS


def update_jobs(now: datetime, slurm: SlurmReader) -> None:
    """Takes Slurm's list of jobs, and counts what open incidents cost them."""
    job_source.record_question(now)
    try:
        answer = slurm.read_recent_jobs(job_source.get_lookback(now))
    except SlurmError as error:
        job_source.note_refusal(str(error))
    else:
        others = [job for job in answer.records if not is_ours(job.name)]
        jobs.store_jobs(others, now, whole_of=SITE)
        has_accounts = _HAS_ACCOUNTS[answer.accounts]
        job_source.record_answer(now, has_accounts=has_accounts, complaint=answer.complaint)
    jobs.forget(now)
    impact.assess(now)
