"""The catalogue against the vendor's own tables: complete, with the vendor's actions, in words of
our own."""

import csv
import re
from pathlib import Path

import pytest

from detectors.catalog import decode
from detectors.catalog.catalog import load
from detectors.faults import Action, Severity

# NVIDIA's buckets for immediate recovery, and what they are here.
XID_ACTIONS = {
    "IGNORE": Action.NONE,
    "RESTART_APP": Action.RESTART_APP,
    "WORKFLOW_XID_45": Action.RESTART_APP,
    "RESTART_VM": Action.RESTART_APP,
    "UPDATE_SWFW": Action.WATCH,
    "XID_154": Action.WATCH,
    "CHECK_MECHANICALS": Action.CHECK_CABLE,
    "WORKFLOW_XID_48": Action.RESET_GPU,
    "WORKFLOW_NVLINK_ERR": Action.RESET_GPU,
    "RESET_GPU": Action.RESET_GPU,
    "RESTART_BM": Action.REBOOT,
}
SXID_ACTIONS = {
    "IGNORE": Action.NONE,
    "": Action.WATCH,
    "UNEXPECTED_ERR_REPORT_ISSUE": Action.WATCH,
    "REPORT_ISSUE": Action.WATCH,
    "RUN_FIELDDIAG": Action.WATCH,
    "CHECK_THERMALS": Action.WATCH,
    "CHECK_FM_CONFIG": Action.WATCH,
    "INVESTIGATE_LINK_SI": Action.CHECK_CABLE,
    "CHECK_LINK_MECHANICAL_CONNECTIONS": Action.CHECK_CABLE,
    "WORKFLOW_NVLINK_POTENTIALLY_FATAL_ERR": Action.RESET_GPU,
    "RESET_GPU": Action.RESET_GPU,
    "RESET_FABRIC": Action.REBOOT,
}
GENERATIONS = ("applies_a100", "applies_h100", "applies_b100", "applies_gb200")
# The vendor names no action for it; it says that what 163 reported is over.
GOOD_NEWS = {162}
LONGEST_SHARED_RUN = 6
NAMED_AS_PRINTED = {"gpu.xid.79"}  # its title is what the driver prints


def table(shared: Path, name: str) -> list[dict[str, str]]:
    with (shared / "data" / name).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def xids(shared):
    return {int(row["code"]): row for row in table(shared, "xid.csv")}


@pytest.fixture(scope="module")
def sxids(shared):
    return {int(row["sxid"]): row for row in table(shared, "sxid.csv")}


def test_every_code_of_the_vendor_has_a_row(xids, sxids):
    ours = {
        family: {row.code for row in load() if row.family == family and row.code}
        for family in ("xid", "sxid")
    }
    assert ours["xid"] == set(xids)
    assert ours["sxid"] == set(sxids)


def test_an_xid_asks_for_what_the_vendor_asks_for_on_the_gpus_that_have_it(xids):
    for code, row in xids.items():
        ours = load().xid(code)
        exists = any(row[generation] == "YES" for generation in GENERATIONS)
        expected = XID_ACTIONS.get(row["nvidia_action"], Action.WATCH) if exists else Action.WATCH
        if code in GOOD_NEWS:
            expected = Action.NONE
        assert ours.action is expected, ours.id


def test_blackwells_program_errors_open_no_incident(xids):
    codes = [
        code
        for code, row in xids.items()
        if row["applies_b100"] == "YES" and row["nvidia_action"] == "RESTART_APP"
    ]
    assert {126, 135, 139} <= set(codes)
    assert [code for code in codes if load().xid(code).opens_incident] == []


def test_an_sxid_asks_for_what_the_vendor_asks_for(sxids):
    for code, row in sxids.items():
        ours = load().sxid(code)
        expected = SXID_ACTIONS[row["nvsentinel_csv_action"]]
        if row["fm_guide_class"] == "always_fatal":
            assert (ours.action, ours.severity) == (Action.REBOOT, Severity.CRITICAL), ours.id
        else:
            assert ours.action is expected, ours.id


def test_an_sxid_has_the_vendors_class_and_none_where_the_vendor_gives_none(sxids):
    classes = {
        "always_fatal": True,
        "potential_fatal": True,
        "non_fatal/other_notable": False,
        "": None,
    }
    for code, row in sxids.items():
        assert load().sxid(code).is_fatal is classes[row["fm_guide_class"]], code


def _runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {
        tuple(words[i : i + LONGEST_SHARED_RUN]) for i in range(len(words) - LONGEST_SHARED_RUN + 1)
    }


def test_no_sentence_is_the_vendors(shared, xids, sxids):
    theirs: set[tuple[str, ...]] = set()
    for row in [*xids.values(), *sxids.values(), *table(shared, "xid_actions.csv")]:
        for name, text in row.items():
            if name in (
                "meaning",
                "trigger_conditions",
                "newer_catalog_note",
                "resolution",
                "impact",
                "recovery",
            ):
                theirs |= _runs(text or "")
    for ours in load():
        text = ours.meaning if ours.id in NAMED_AS_PRINTED else f"{ours.title}. {ours.meaning}"
        assert not _runs(text) & theirs, ours.id


def test_each_row_of_nvlink_5s_decode_table_asks_for_what_the_vendor_asks_for(shared):
    """The table's units, reasons (bits 20 to 25 of the first register) and status words."""
    asked = {
        "IGNORE": {Action.NONE},
        "RESET_GPU": {Action.RESET_GPU},
        "XID_154_EVAL": {Action.WATCH},
    }
    wrong = []
    rows = table(shared, "xid_nvlink5_decode.csv")
    for row in rows:
        word = "Nonfatal" if row["severity"].startswith("Non") else "Fatal"
        first = int(re.sub(r"[^01]", "0", row["intrinfo_v2_ge_r575"] or "0").ljust(32, "0")[:32], 2)
        status = int(row["error_status_hex"].partition("/")[0] or "0x0", 16)
        for unit in row["subcode"].split("/"):
            text = f"{unit} {word} XC0 i0 Link 01 (0x{first:08x} 0x{status:08x} 0x00000000)"
            action = decode.xid(load().xid(int(row["xid"])), text).fault_type.action
            if action not in asked[row["resolution"]]:
                wrong.append((row["xid"], text, action))
    assert len(rows) > 90
    assert not wrong
