"""How switches word an alarm: a row of subject and words becomes the signatures of every vendor
that names a message by facility, severity and mnemonic.

`%FACILITY-SEVERITY-MNEMONIC: sentence` is Cisco's (NX-OS, IOS, IOS XR), Arista's and Dell's;
Huawei and H3C write `%%10FACILITY/SEVERITY/MNEMONIC: sentence`, of an alarm without what stands
before the facility, Juniper `DAEMON_SUBJECT_WORD: `. A
message is about a subject when a part of its mnemonic or its facility is one of the row's words;
it fails or clears by another part of the mnemonic, or else by the sentence. What clears is read
first, so that it never begins a fault. Pure. Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Dell's FTOS names the unit of a stack or the module before the facility.
_NAMED = r"(?:%?(?:STKUNIT\d{1,2}|RPM\d|LP\d{1,2})-\w{1,2}:\w{1,3} )?%"
# A facility may have parts: PLATFORM_ENV, PKT_INFRA-LINK, PLATFORM-SW1.
_FACILITY = r"[A-Z][\w-]{0,60}"
_HUAWEI = r"(?:%%\d\d)?"
_OS10 = r"(?:Node\.\S{1,40} \[\w{1,20}\], [\w ]{1,40} )?\(OS10\) %"
# Ports as the vendors name them, in the sentence.
_PORT = (
    r"(?P<port>(?:(?:Fast|Gigabit|Ten|TwentyFive|Forty|Fifty|Hundred|TwoHundred|FourHundred|EightHundred)?"
    r"(?:Gig(?:abit)?)?E(?:thernet)?|Eth|Et|Gi|Te|Tw|Fo|Hu|Fi|Po|[Pp]ort-?[Cc]hannel|mgmt|Management"
    r"|xe-|et-|ge-|ae|swp|fc|\d{1,3}GE)\d[\w/.:]{0,20})"
)
_NEEDED = ("type", "subject", "fails", "clears", "says_fails", "says_clears", "source")
_FIELDS = (*_NEEDED, "on_port")


def expand(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The signature rows of one grammar row, in the order in which they are tried: what clears,
    then what fails, by mnemonic, and then both by the sentence. Raises ValueError with one reason
    per line.

    `subject`, `fails` and `clears` are lists of words in capitals, as parts of mnemonics;
    `says_fails` and `says_clears` lists of words of the sentence. With `on_port` a port that the
    sentence names is the resource.
    """
    reasons = [f"unknown field {name}" for name in sorted(set(row) - set(_FIELDS))]
    reasons += [f"missing {name}" for name in _NEEDED if not row.get(name)]
    if reasons:
        raise ValueError("\n".join(reasons))
    subject = _make_alternative(row["subject"])
    clears, fails = _make_alternative(row["clears"]), _make_alternative(row["fails"])
    ends = _make_mnemonic_patterns(subject, clears, is_last=True)
    begins = _make_mnemonic_patterns(subject, fails, is_last=False)
    named = _make_subject_patterns(subject)
    says_end, says_failure = (
        _make_alternative(row["says_clears"]),
        _make_alternative(row["says_fails"]),
    )
    yield from _make_signatures(row, "cleared", ends)
    yield from _make_signatures(row, "raised", begins)
    yield from _make_juniper_signatures(row, "cleared", clears)
    yield from _make_juniper_signatures(row, "raised", fails)
    yield from _make_signatures(row, "cleared", named, rf".{{0,200}}\b{says_end}")
    yield from _make_signatures(row, "raised", named, rf".{{0,200}}\b{says_failure}")


def _make_alternative(words: list[str]) -> str:
    """One of these; the longest first, as an alternative that begins another would hide it."""
    return "(?:" + "|".join(sorted(words, key=len, reverse=True)) + ")"


def _make_mnemonic_patterns(subject: str, word: str, *, is_last: bool) -> list[str]:
    """A message whose mnemonic, or facility and mnemonic, name the subject and the word. `is_last`:
    the word ends the mnemonic, as that of a clear does: SYNC is one, SYNC_LOST is not."""
    rest = "" if is_last else r"(?:_\w{0,40})?"
    forms = [
        rf"(?:\w{{0,40}}_)?{subject}\d*_(?:\w{{0,40}}_)?{word}{rest}",
        rf"(?:\w{{0,40}}_)?{subject}{word}",
    ]
    if not is_last:
        forms.append(rf"(?:\w{{0,40}}_)?{word}_(?:\w{{0,40}}_)?{subject}\d*{rest}")
    about = _join_alternatives(*forms)
    facility = _make_facility_pattern(subject)
    by_mnemonic = rf"{_NAMED}{_FACILITY}-\d-{about}\s?:"
    by_facility = rf"{_NAMED}{facility}-\d-(?:\w{{0,40}}_)?{word}{rest}\s?:"
    of_huawei = rf"{_HUAWEI}\w{{1,40}}/\d/{about}(?:\(\w{{1,4}}\))?(?:\[\d{{1,10}}\])?:"
    of_os10 = rf"{_OS10}{about}\s?:"
    return [by_mnemonic, by_facility, of_huawei, of_os10]


def _make_subject_patterns(subject: str) -> list[str]:
    """A message whose mnemonic or facility names the subject; the sentence says what became of
    it."""
    part = rf"(?:\w{{0,40}}_)?{subject}\d*(?:_\w{{0,40}})?"
    return [
        rf"{_NAMED}{_FACILITY}-\d-{part}\s?:",
        rf"{_NAMED}{_make_facility_pattern(subject)}-\d-\w{{1,60}}\s?:",
        rf"{_HUAWEI}\w{{1,40}}/\d/{part}(?:\(\w{{1,4}}\))?(?:\[\d{{1,10}}\])?:",
    ]


def _make_facility_pattern(subject: str) -> str:
    """A facility that is the subject's."""
    return rf"(?:[\w-]{{0,40}}[_-])?{subject}\d*(?:[_-][\w-]{{0,40}})?"


def _join_alternatives(*patterns: str) -> str:
    return "(?:" + "|".join(patterns) + ")"


def _make_signatures(
    row: Mapping[str, Any], event: str, messages: list[str], sentence: str = ""
) -> Iterator[dict[str, Any]]:
    # One look for the subject, whatever became of it: hundreds of patterns side by side would
    # cost each line of a log.
    scan = rf"[%_/-]{_make_alternative(row['subject'])}"
    shared = {**_get_shared_fields(row, event), "scan": scan}
    if row.get("on_port"):
        ports = [f"{message}.{{0,200}}?{_PORT}{sentence}" for message in messages]
        yield {**shared, "on": "port", "pattern": ports}
    yield {**shared, "on": "switch", "pattern": [message + sentence for message in messages]}


def _make_juniper_signatures(
    row: Mapping[str, Any], event: str, word: str
) -> Iterator[dict[str, Any]]:
    daemon = "(?:CHASSISD|RPD|LACPD|PFED|L2ALD|ESWD)"
    pattern = rf"{daemon}_(?:\w{{0,40}}_)?{_make_alternative(row['subject'])}_?{word}\w{{0,40}}: "
    yield {**_get_shared_fields(row, event), "on": "switch", "pattern": pattern}


def _get_shared_fields(row: Mapping[str, Any], event: str) -> dict[str, Any]:
    return {
        "type": row["type"],
        "event": event,
        "program": "any",
        "facility": "any",
        "begins": "message",
    }
