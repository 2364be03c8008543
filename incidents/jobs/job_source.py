"""Since when the jobs of a cluster are known, and why they are not. The only writer of
`JobSource`."""

from __future__ import annotations

from datetime import datetime, timedelta

from incidents.db.prepared import Prepared
from incidents.faults import dedup
from incidents.models import JobSource

# Accounts come late: slurmdbd may be down for a while, and a job is written when its last step has
# ended.
_LATE = timedelta(hours=1)
# What slurmctld could not tell slurmdbd it keeps, and tells it later: Slurm 22.05.8 begins up to 15
# s after slurmdbd is back (measured). Asked for that long again: our choice, for many jobs.
_SETTLES = timedelta(minutes=10)
_CLUSTER = "slurm"
_KNOWN = Prepared(lambda: JobSource.objects.filter(cluster=_CLUSTER)[:1])


def record_question(now: datetime) -> None:
    """Slurm is asked for its jobs now."""
    JobSource.objects.update_or_create(cluster=_CLUSTER, defaults={"asked_at": now})


def get_lookback(now: datetime) -> timedelta:
    """How far back the accounts are asked for: to the last answer, and as far as an event may still
    count."""
    known = get_source()
    if known is None or known.accounts_at is None:
        return dedup.KEPT
    since_answer = max(now - known.accounts_at, timedelta(0))
    return min(since_answer + _LATE, dedup.KEPT)


def record_answer(now: datetime, *, has_accounts: bool | None, complaint: str = "") -> None:
    """Slurm listed its jobs. `has_accounts` is None when the accounting was asked and gave no
    answer."""
    changed: dict[str, object] = {"answered_at": now, "complaint": complaint[:255]}
    if has_accounts is not None:
        changed["has_accounts"] = has_accounts
    changed |= _get_account_times(now) if has_accounts else {"accounts_back_at": None}
    JobSource.objects.filter(cluster=_CLUSTER).update(**changed)


def _get_account_times(now: datetime) -> dict[str, datetime | None]:
    """After a long silence the first answer may lack what slurmctld still holds back: it is asked
    for again."""
    known = get_source()
    if known is not None and known.accounts_at is not None and now - known.accounts_at > _LATE:
        if known.accounts_back_at is None:
            return {"accounts_back_at": now}
        if timedelta(0) <= now - known.accounts_back_at < _SETTLES:
            return {}
    return {"accounts_at": now, "accounts_back_at": None}


def note_refusal(complaint: str) -> None:
    JobSource.objects.filter(cluster=_CLUSTER).update(complaint=complaint[:255])


def is_silent() -> bool:
    """The last question to Slurm got no answer."""
    known = get_source()
    return known is not None and known.asked_at is not None and known.asked_at != known.answered_at


def get_source() -> JobSource | None:
    return next(iter(_KNOWN.objects()), None)


def get_notice() -> str:
    """What keeps an impact from being known, with what a person can do; empty: nothing."""
    known = get_source()
    if known is None or known.asked_at is None:
        return "Jobs are not known yet: Slurm has not been asked."
    if known.answered_at is None:
        return f"Jobs are not known: {known.complaint or 'Slurm has not answered yet'}"
    if known.complaint and known.answered_at >= known.asked_at:
        last = (
            f" They last told at {known.accounts_at:%Y-%m-%d %H:%M %Z}."
            if known.accounts_at is not None
            else ""
        )
        return (
            f"The accounts of jobs do not answer: {known.complaint}.{last} Jobs that run are known;"
            " how some ended is not, until the accounts are back. Kintsugi asks each minute, and"
            " then for all that it missed."
        )
    if known.complaint:
        return (
            "Jobs may be out of date, Slurm's last list is of"
            f" {known.answered_at:%Y-%m-%d %H:%M %Z}: {known.complaint}"
        )
    if known.has_accounts is False:
        return (
            "This site keeps no accounts of jobs, or has no `sacct` where Slurm's programs run: how"
            " a job ended is known only when it was seen within Slurm's MinJobAge (300 s by"
            " default), and what ended while Kintsugi was away is not known."
        )
    return ""
