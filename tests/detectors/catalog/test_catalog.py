"""The catalogue as it ships, and what loading refuses."""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from detectors.catalog.catalog import CatalogError, files, list_group_names, load, read, tables
from detectors.faults import Action, ClearRule, Component, Fitness, Severity

RELEASED = Path(__file__).parents[1] / "released_types.tsv"
_TYPE = """
[[type]]
id = "gpu.sample"
title = "A sample"
component = "gpu"
event_type = "equipment"
severity = "warning"
action = "none"
clears = "by_operator"
meaning = "Made for a test."
source = "tests"
"""
_SIGNATURE = """
[[signature]]
type = "gpu.sample"
event = "raised"
on = "node"
program = "kernel"
facility = "kern"
begins = "message"
pattern = 'sample text'
"""


def loaded(tmp_path, text, name="sample.toml"):
    path = tmp_path / name
    path.write_text(text)
    return read([path])


def refusal(tmp_path, text):
    with pytest.raises(CatalogError) as refused:
        loaded(tmp_path, text)
    return str(refused.value)


def test_a_row_and_its_signature_load(tmp_path):
    catalog = loaded(tmp_path, _TYPE + _SIGNATURE)
    assert catalog["gpu.sample"].title == "A sample"
    assert [signature.pattern for signature in catalog.signatures] == ["sample text"]


def test_defaults_of_a_file_fill_what_a_row_leaves_out(tmp_path):
    text = '[defaults]\nclears = "after_quiet"\nquiet = "90s"\n' + _TYPE.replace(
        'clears = "by_operator"\n', ""
    )
    row = loaded(tmp_path, text)["gpu.sample"]
    assert (row.clears, row.quiet) == (ClearRule.AFTER_QUIET, timedelta(seconds=90))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('clears = "by_operator"\n', "", "missing clears"),
        (
            'component = "gpu"',
            'component = "toaster"',
            "component 'toaster' is none of gpu, nvlink",
        ),
        (
            'action = "none"',
            'action = "none"\nflap_start = 20\nflap_stop = 30',
            "stops below where it starts",
        ),
        (
            'action = "none"',
            'action = "none"\nflap_stop = 30',
            "flap_start and flap_stop come together",
        ),
        (
            'action = "none"',
            'action = "none"\nflap_look = "often"',
            "flap_look 'often' is no duration",
        ),
        ('action = "none"', 'action = "none"\nboot_grace = "5m"', "unknown field boot_grace"),
        ('severity = "warning"', 'severity = "cleared"', "severity 'cleared' is none of"),
        ('action = "none"', 'action = "none"\nfitness = "ill"', "fitness 'ill' is none of unfit"),
        (
            'severity = "warning"',
            'severity = "critical"\nfitness = "fit"',
            "it is critical and of a node's own part, and yet the node is said to be fit",
        ),
        (
            'component = "gpu"',
            'component = "facility"\nfitness = "unfit"',
            "unfit is said of nodes, and facility is no part of one",
        ),
        ('source = "tests"', 'source = "tests"\ncolour = "red"', "unknown field colour"),
        ('clears = "by_operator"', 'clears = "after_quiet"', "without the period"),
        ('clears = "by_operator"', 'clears = "after_quiet"\nquiet = "soon"', "no duration"),
        ('id = "gpu.sample"', 'id = "Sample"', "not dotted lower-case words"),
    ],
)
def test_a_wrong_row_is_refused_with_file_line_and_reason(tmp_path, old, new, reason):
    message = refusal(tmp_path, _TYPE.replace(old, new))
    assert message.startswith("sample.toml:2: ")
    assert reason in message


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("sample text", "(unclosed", "does not compile"),
        ("sample text", "a(?=b)", "look-around"),
        ("sample text", "(?<!a)b", "look-around"),
        ("sample text", r"(a)\\1", "back-reference"),
        ("sample text", "(?P<x>a)(?P=x)", "back-reference"),
        ('on = "node"', 'on = "gpu"', "needs a group named pci"),
        ('on = "node"', 'on = "moon"', "on 'moon' is none of"),
        ('event = "raised"', 'event = "maybe"', "event 'maybe' is none of"),
        ('program = "kernel"\n', "", "missing program"),
        ('facility = "kern"\n', "", "missing facility"),
        ('begins = "message"\n', "", "missing begins"),
        ('facility = "kern"', 'facility = "kernel"', "facility 'kernel' is none of any, kern"),
        ('begins = "message"', 'begins = "anywhere"', "begins 'anywhere' is none of message"),
        ('type = "gpu.sample"', 'type = "gpu.absent"', "gpu.absent: no such fault type"),
        ('type = "gpu.sample"', 'type = "gpu.{code}"', "no group `code`"),
        ('on = "node"', 'on = "node"\nqualifier = ["peer"]', "qualifier peer is no group"),
    ],
)
def test_a_wrong_signature_is_refused_with_file_line_and_reason(tmp_path, old, new, reason):
    text = _TYPE + _SIGNATURE.replace(old, new.replace("\\\\", "\\"))
    message = refusal(tmp_path, text)
    assert message.startswith("sample.toml:13: ")
    assert reason in message


def _list_shipped_patterns():
    shipped = load()
    for signature in shipped.signatures:
        yield from ((signature.where, text) for text in _get_patterns(signature) if text)
    yield from ((row.where, row.pattern) for row in shipped.harmless)


def _get_patterns(signature):
    return signature.pattern, signature.unless, signature.scan


def test_every_shipped_pattern_compiles_and_has_the_groups_that_its_text_names():
    for where, pattern in _list_shipped_patterns():
        groups = frozenset(re.compile(pattern.encode()).groupindex)
        assert (where, list_group_names(pattern)) == (where, groups)


def test_look_around_inside_a_character_class_or_escaped_is_only_text(tmp_path):
    catalog = loaded(tmp_path, _TYPE + _SIGNATURE.replace("sample text", r"[(?=!]\(\?="))
    assert len(catalog.signatures) == 1


def test_all_problems_are_told_in_one_go(tmp_path):
    bad = _TYPE.replace('component = "gpu"', 'component = "toaster"')
    message = refusal(
        tmp_path,
        _TYPE + bad.replace("gpu.sample", "gpu.other") + _SIGNATURE.replace("sample text", "("),
    )
    assert [line.split(": ", 1)[0] for line in message.splitlines()] == [
        "sample.toml:13",
        "sample.toml:24",
    ]


_GRACE = """
[[grace]]
types = ["gpu.*"]
period = "5m"
source = "tests"
"""


def test_a_type_has_the_longest_grace_that_covers_it(tmp_path):
    longer = _GRACE.replace("5m", "10m").replace("gpu.*", "gpu.sample")
    assert loaded(tmp_path, _TYPE + _GRACE + longer)["gpu.sample"].boot_grace == timedelta(
        minutes=10
    )
    assert loaded(tmp_path, _TYPE)["gpu.sample"].boot_grace == timedelta(0)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("gpu.*", "nic.*", "sample.toml:13: nic.*: no such fault type"),
        ('source = "tests"', "", "missing source"),
        ('["gpu.*"]', '"gpu.*"', "types is no list"),
        ('"5m"', '"soon"', "period 'soon' is no duration"),
        ('period = "5m"', 'period = "5m"\nafter = "boot"', "unknown field after"),
    ],
)
def test_a_wrong_grace_is_refused_with_its_reason(tmp_path, old, new, reason):
    assert reason in refusal(tmp_path, _TYPE + _GRACE.replace(old, new))


def test_nothing_that_condemns_a_gpu_at_once_waits_for_a_boot():
    """A grace is for what the boot itself brings; a GPU that is lost after it is lost."""
    waits = {row.id for row in load() if row.boot_grace}
    assert not {
        name
        for name in waits
        if name.startswith(("gpu.xid", "gpu.lost", "nvlink.sxid", "gpu.ecc", "node.kernel"))
    }


def test_a_duplicate_id_names_the_place_of_the_first(tmp_path):
    assert "sample.toml:13: gpu.sample: duplicate id, first at sample.toml:2" in refusal(
        tmp_path, _TYPE + _TYPE
    )


def test_a_duplicate_id_in_another_file_is_found_too(tmp_path):
    for name in ("a.toml", "b.toml"):
        (tmp_path / name).write_text(_TYPE)
    with pytest.raises(
        CatalogError, match=r"b.toml:2: gpu.sample: duplicate id, first at a.toml:2"
    ):
        read(sorted(tmp_path.glob("*.toml")))


def test_a_file_that_is_no_toml_is_named(tmp_path):
    assert refusal(tmp_path, "[[type]\n").startswith("sample.toml: cannot be read: ")


def test_an_unknown_table_is_named(tmp_path):
    assert "unknown table types" in refusal(tmp_path, "[[types]]\nid = 'x'\n" + _TYPE)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CatalogError, match=r"absent\.toml: cannot be read"):
        read([tmp_path / "absent.toml"])


def test_a_number_without_a_row_is_a_warning_to_look_at():
    for unknown in (load().xid(999), load().sxid(99999), load()["gpu.xid.999"]):
        assert (unknown.severity, unknown.action) == (Severity.WARNING, Action.WATCH)
        assert unknown.opens_incident
    assert load().xid(999).title == "Xid 999, not in the catalogue"
    assert load().xid(999).code == 999


def test_an_unknown_id_of_no_family_is_an_error():
    assert load().get("gpu.on_fire") is None
    with pytest.raises(KeyError, match=r"no fault type gpu\.on_fire"):
        load()["gpu.on_fire"]


def test_the_word_fatal_decides_where_the_vendor_gives_no_class():
    unclassed = load().sxid(11000)
    assert (unclassed.is_fatal, unclassed.action) == (None, Action.WATCH)
    fatal = load().sxid(11000, True)
    assert (fatal.severity, fatal.action) == (Severity.CRITICAL, Action.RESET_GPU)
    assert load().sxid(11000, False) == unclassed


def test_the_word_non_fatal_takes_a_reset_back_only_where_the_vendor_gives_no_class():
    assert load().sxid(14001, False).action is Action.WATCH
    assert load().sxid(24007, False) == load().sxid(24007)


def test_a_class_that_the_vendor_gives_is_never_lowered_by_the_word():
    always_fatal = load().sxid(22003)
    assert (always_fatal.severity, always_fatal.action) == (Severity.CRITICAL, Action.REBOOT)
    for word in (True, False):
        assert load().sxid(22003, word).action is Action.REBOOT


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_sympathetic_codes_never_open_an_incident(code):
    row = load().xid(code)
    assert row.is_sympathetic
    assert not row.opens_incident


@pytest.mark.parametrize(
    ("code", "action", "severity"),
    [
        (43, Action.NONE, Severity.WARNING),
        (48, Action.RESET_GPU, Severity.MAJOR),
        (54, Action.CHECK_CABLE, Severity.MAJOR),
        (62, Action.RESET_GPU, Severity.CRITICAL),
        (63, Action.NONE, Severity.WARNING),
        (64, Action.RESET_GPU, Severity.MAJOR),
        (78, Action.WATCH, Severity.MINOR),
        (79, Action.REBOOT, Severity.CRITICAL),
        (92, Action.NONE, Severity.WARNING),
        (94, Action.RESTART_APP, Severity.WARNING),
        (95, Action.RESET_GPU, Severity.CRITICAL),
        (109, Action.RESET_GPU, Severity.MAJOR),
        (119, Action.RESET_GPU, Severity.CRITICAL),
        (149, Action.WATCH, Severity.WARNING),
        (154, Action.WATCH, Severity.WARNING),
        (167, Action.WATCH, Severity.WARNING),
    ],
)
def test_known_codes_ask_for_what_nvidia_says_on_an_h100(code, action, severity):
    row = load().xid(code)
    assert (row.action, row.severity) == (action, severity)


def test_severity_follows_from_what_the_vendor_tells_to_do():
    expected = {
        Action.NONE: {Severity.WARNING},
        Action.RESTART_APP: {Severity.WARNING},
        Action.WATCH: {Severity.WARNING, Severity.MINOR},
        Action.CHECK_CABLE: {Severity.MAJOR, Severity.CRITICAL},
        Action.RESET_GPU: {Severity.MAJOR, Severity.CRITICAL},
        Action.REBOOT: {Severity.MAJOR, Severity.CRITICAL},
    }
    for row in load():
        if row.family in {"xid", "sxid"}:
            assert row.severity in expected[row.action], row.id


def test_only_nvlink_codes_are_of_another_class_than_the_gpu():
    nvlink = {
        row.code for row in load() if row.family == "xid" and row.component is Component.NVLINK
    }
    assert nvlink == {74, 108, 136, 137, *range(144, 151), 155, 166, 170}
    assert {row.component for row in load() if row.family == "xid"} == {
        Component.GPU,
        Component.NVLINK,
    }


def test_what_asks_for_a_reboot_of_a_lost_gpu_can_be_confirmed_on_the_node():
    for fault_type in ("gpu.xid.79", "gpu.lost", "gpu.unresponsive"):
        assert load()[fault_type].confirmed_by == ("gpu",)


def test_every_row_reads_like_prose():
    for row in load():
        assert 20 <= len(row.meaning) <= 300, row.id
        assert row.meaning.endswith("."), row.id
        assert not re.search(r"!|\bplease\b|\boops\b", row.meaning, re.IGNORECASE), row.id
        assert 4 <= len(row.title) <= 100, row.id


def test_what_clears_by_event_has_a_signature_that_clears_it():
    cleared = {
        name
        for signature in load().signatures
        if signature.event.value == "cleared"
        for name in signature.types
    }
    by_event = {row.id for row in load() if row.clears is ClearRule.BY_EVENT}
    assert by_event <= cleared


def test_the_catalogue_is_read_once_per_process():
    assert load() is load()


def test_fault_types_that_were_released_keep_their_id_and_class():
    """Sites keep silences, runbooks, reports and years of incidents by these ids: one is never
    taken away or given to something else. A release adds its new ones to the list. A class changes
    only by the rule of docs/reference/catalogue.md, and CHANGELOG says so."""
    released = dict(line.split("\t") for line in RELEASED.read_text().splitlines())
    shipped = {name: str(row.component) for name, row in load().types.items()}
    assert {name: shipped.get(name) for name in released} == released


def test_each_shipped_type_says_whether_a_job_can_be_placed_beside_it():
    for path in files():
        found = tables(path)
        rows = [{**found.get("defaults", {}), **row} for row in found.get("type", ())]
        assert [row["id"] for row in rows if "fitness" not in row] == [], path.name


@pytest.mark.parametrize(
    ("severity", "fitness"), [("critical", Fitness.DEGRADED), ("minor", Fitness.FIT)]
)
def test_a_sites_row_that_does_not_say_it_moves_no_node(tmp_path, severity, fitness):
    path = tmp_path / "sample.toml"
    path.write_text(_TYPE.replace('severity = "warning"', f'severity = "{severity}"'))
    assert read([path])["gpu.sample"].fitness is fitness
