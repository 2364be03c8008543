"""Which strings of a program's source are found, what stands in for their conversions, and what is
made of them."""

from pathlib import Path

import pytest

from tests.conformance import log_strings
from tests.conformance.log_strings import LINE, Reading

SOURCE = r"""
/* dev_err(dev, "in a comment,
   of nobody"); */
int probe(struct device *dev)
{
    dev_err(dev, "http://example/link %d of %s is \"down\": %#x\n", port, name, 0x7f);
    netdev_warn(dev->netdev[0], "queue %u stuck for " "%lu ms",
                queue, ms);
    printk(KERN_CRIT "temperature of %pI4 is %3.1f degrees", &address, degrees);
    NV_PRINTF(LEVEL_ERROR, "GSP does not answer on %04x:%02x\n", domain, bus);
    SWSS_LOG_ERROR("Failed to create port %" PRIx64 " on switch", id);
    log_error("Cannot open " + path + " for writing");
    dev_info(dev, "link is up again");
    error(message);
    set_error("ENOENT");
    return strcmp(text, "not a message");
}
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "src" / "probe.c"
    path.parent.mkdir()
    path.write_text(SOURCE)
    return path


def test_what_a_call_logs_at_a_warning_or_worse_is_found_with_its_severity(source: Path) -> None:
    found = log_strings.find_strings(source.parent)

    texts = [(string.severity, log_strings.make_text(string.text)) for string in found]
    assert texts == [
        (3, 'http://example/link 17 of value is "down": 1f'),
        (4, "queue 17 stuck for 17 ms"),
        (2, "temperature of 10.0.0.17 is 1.5 degrees"),
        (3, "GSP does not answer on 1f:1f"),
        (3, "Failed to create port 1f on switch"),
        (3, "Cannot open value for writing"),
    ]


def test_a_string_has_the_place_where_it_stands(source: Path) -> None:
    found = log_strings.find_strings(source.parent)

    lines = SOURCE.splitlines()
    for string in found:
        assert string.path == "probe.c"
        assert string.text[:8] in lines[string.line - 1]


@pytest.mark.parametrize(
    ("string", "text"),
    [
        (r"first line\nsecond line", "first line"),
        (r"\tindented %%", "indented %"),
        ("%s: %-10.10s|%*d|%zu|%llx", "value: value|17|17|1f"),
        ("open: %m", "open: Input/output error"),
        ("%pV of %pISpc", "value of 10.0.0.17"),
    ],
)
def test_something_stands_in_for_each_conversion(string: str, text: str) -> None:
    assert log_strings.make_text(string) == text


def test_what_becomes_of_a_string_is_what_becomes_of_its_line(tmp_path: Path) -> None:
    path = tmp_path / "driver.c"
    path.write_text(
        'void f(void) { nv_err("NVRM: Xid (PCI:0000:19:00): 79, pid=%d, GPU has fallen off");'
        ' nv_err("frobnication of lane %d failed"); nv_warn("Change the ring size"); }'
    )

    found = list(log_strings.read_strings(log_strings.find_strings(path), LINE))

    assert [(row.reading, row.fault_type) for row in found] == [
        (Reading.READ, "gpu.xid.79"),
        (Reading.LISTED, ""),
        (Reading.PASSED_OVER, ""),
    ]


def test_only_strings_that_the_older_release_has_not_are_printed(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = tmp_path / "newer.c"
    newer.write_text(SOURCE.replace("stuck for", "asleep for"))

    log_strings.main([str(newer), "--unlike", str(source), "--show", "passed over"])

    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "newer.c:7\t4\tpassed over\tqueue 17 asleep for 17 ms",
        "severity  strings         read     harmless       listed  passed over",
        "       4        1           0%           0%           0%         100%",
    ]


def test_a_source_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="gone: no such file or folder"):
        log_strings.main([str(tmp_path / "gone")])


def test_a_form_without_a_place_for_the_message_is_refused(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        log_strings.main([str(source), "--line", "kernel: {message}"])

    assert "--line: has no {text}" in capsys.readouterr().err
