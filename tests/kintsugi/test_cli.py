"""`kintsugi`: what each verb prints, what scripts read of it, and how it ends."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands
from django.utils import timezone
from typer.core import TyperGroup

from detectors.catalog import catalog
from detectors.logs.unread import UnreadLine
from incidents.checks import unread_lines
from incidents.inventory import node_states
from incidents.models import SiteChange, UnreadTemplate
from incidents.notify import story
from incidents.vocabulary.lifecycle import State
from kintsugi.cli import exit_codes
from kintsugi.cli.grammar import OBJECTS, VERBS, Needs, Verb
from kintsugi.cli.main import build, main
from runbooks.models import Mode, Question, Run, RunState, StepRun, StopSwitch
from runbooks.models.breaker import Breaker
from tests.builders import NOW, a_fault, a_node, an_incident, an_interval

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Command:
    """`kintsugi` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Ended:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main(words)
        out, err = self._capsys.readouterr()
        return Ended(int(caught.value.code or 0), out, err)


@pytest.fixture
def kintsugi(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def in_a_process(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """As a person's shell has it: without any of the site's settings but these."""
    clean = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("KINTSUGI_", "DATABASE_"))
    }
    return subprocess.run(
        [sys.executable, "-m", "kintsugi", *words],
        cwd=cwd,
        env={**clean, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def a_run(**values: Any) -> Run:
    incident = an_incident()
    defaults = {
        "runbook": "reboot",
        "fault_type": incident.fault_type,
        "mode": Mode.ARMED,
        "started_at": NOW,
        "node": incident.node,
    }
    return Run.objects.create(incident=incident, **{**defaults, **values})


# The grammar
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb.words))
def test_each_verb_is_run_by_something_that_exists(verb: Verb) -> None:
    assert bool(verb.function) != bool(verb.manage)
    if verb.manage:
        assert verb.manage[0] in get_commands()
        assert verb.needs is not Needs.NOTHING
        return
    module_name, _, function_name = verb.function.partition(":")
    function = getattr(importlib.import_module(module_name), function_name)
    takes_a_context = "context" in inspect.signature(function).parameters
    assert takes_a_context == verb.passes_on


def test_each_object_has_verbs_and_each_verb_one_place() -> None:
    assert {verb.words[0] for verb in VERBS if len(verb.words) == 2} == set(OBJECTS)
    assert len({verb.words for verb in VERBS}) == len(VERBS)
    root = build()
    for verb in VERBS:
        group: Any = root
        for word in verb.words[:-1]:
            group = group.commands[word]
            assert isinstance(group, TyperGroup)
        assert group.commands[verb.words[-1]].verb is verb


def test_every_command_of_ours_is_a_verb() -> None:
    ours = {name for name, app in get_commands().items() if app in ("kintsugi", "fixtures")}
    assert ours - {verb.manage[0] for verb in VERBS if verb.manage} == {"demo"}


def test_every_verb_stands_in_the_documentation() -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    assert [verb.words for verb in VERBS if f"`kintsugi {' '.join(verb.words)}" not in text] == []


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb.words))
def test_each_verb_explains_itself_without_a_site(kintsugi: Command, verb: Verb) -> None:
    ended = kintsugi(*verb.words, "--help")
    assert ended.code == exit_codes.OK
    assert "usage" in ended.out.lower() or "COMMAND" in ended.out


# Exit codes
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("incident", "lsit"),
        ("incident", "show"),
        ("incident", "show", "x"),
        ("incident", "list", "gn[001"),
        ("silence", "add", "--for"),
        ("inventory", "from-slurm", "--nonsense"),
        ("manage", "nonsense"),
    ],
    ids=" ".join,
)
@pytest.mark.django_db
def test_words_that_are_not_understood_end_with_2(
    kintsugi: Command, words: tuple[str, ...]
) -> None:
    ended = kintsugi(*words)
    assert (ended.code, ended.out) == (exit_codes.USAGE, "")
    assert ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "words",
    [
        ("incident", "show", "4000"),
        ("incident", "why", "4000"),
        ("run", "show", "4000"),
        ("approval", "give", "4000"),
        ("node", "show", "gn999"),
        ("nodes", "gn999"),
        ("silence", "end", "4000"),
    ],
    ids=" ".join,
)
@pytest.mark.django_db
def test_what_is_not_there_ends_with_1(kintsugi: Command, words: tuple[str, ...]) -> None:
    ended = kintsugi(*words)
    assert (ended.code, ended.out) == (exit_codes.FAILED, "")


def test_no_site_in_this_folder_ends_with_3_and_makes_nothing(tmp_path: Path) -> None:
    ended = in_a_process("incident", "list", cwd=tmp_path)
    assert ended.returncode == exit_codes.NO_SITE
    assert "There is no Kintsugi here" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_database_without_tables_ends_with_3(tmp_path: Path) -> None:
    ended = in_a_process("stop", "--reason", "x", cwd=tmp_path, KINTSUGI_DATA_DIR=str(tmp_path))
    assert ended.returncode == exit_codes.NO_SITE
    assert "Traceback" not in ended.stderr


def test_wrong_settings_end_with_2_and_name_file_key_and_what_was_expected(
    tmp_path: Path,
) -> None:
    path = tmp_path / "kintsugi.toml"
    path.write_text("KINTSUGI_CAP_NODES = 0\n")
    ended = in_a_process("--config", str(path), "incident", "list", cwd=tmp_path)
    assert ended.returncode == exit_codes.USAGE
    expected = f"{path}: KINTSUGI_CAP_NODES=0: expected a whole number from 1.\n"
    assert (ended.stderr, ended.stdout) == (expected, "")


# The site
# ------------------------------------------------------------------------------------------------


def test_a_site_of_its_own_from_a_file_to_a_stop(tmp_path: Path) -> None:
    path = tmp_path / "kintsugi.toml"
    data = tmp_path / "data"
    path.write_text(f'KINTSUGI_DATA_DIR = "{data}"\nKINTSUGI_CLUSTER_NAME = "sakuraone"\n')
    site = f"Site sakuraone, {data / 'kintsugi.sqlite3'}, settings from {path}.\n"
    config = ("--config", str(path))
    made = in_a_process(*config, "migrate", "--verbosity", "0", cwd=tmp_path)
    assert (made.returncode, made.stderr) == (exit_codes.OK, site)
    stopped = in_a_process(*config, "stop", "--reason", "3 a.m.", cwd=tmp_path)
    assert stopped.returncode == exit_codes.OK
    assert stopped.stderr.startswith(site)
    shown = in_a_process(*config, "site", "show", "--json", cwd=tmp_path)
    assert json.loads(shown.stdout)["database"] == str(data / "kintsugi.sqlite3")
    listed = in_a_process(*config, "incident", "list", cwd=tmp_path)
    assert (listed.stdout, listed.stderr) == ("No incident.\n", "")


@pytest.mark.django_db
def test_what_changes_the_site_says_first_which_one_it_is(kintsugi: Command) -> None:
    ended = kintsugi("stop", "--reason", "3 a.m.")
    assert ended.code == exit_codes.OK
    assert ended.err.startswith("Site without a name (KINTSUGI_CLUSTER_NAME), ")
    assert StopSwitch.objects.get().reason == "3 a.m."


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb.words))
def test_every_verb_that_ends_with_an_answer_takes_json(kintsugi: Command, verb: Verb) -> None:
    if not verb.manage or verb.manage[0] in ("up", "receive"):
        return
    assert "--json" in kintsugi(*verb.words, "--help").out


@pytest.mark.django_db
def test_a_script_reads_what_came_of_an_act(kintsugi: Command) -> None:
    told = kintsugi("stop", "--reason", "3 a.m.", "--json").json
    assert StopSwitch.objects.get().reason == "3 a.m."
    assert (told["verb"], told["done"], told["code"], told["problems"]) == ("stop", True, 0, [])
    assert any("stop switch" in line for line in told["text"])


@pytest.mark.django_db
def test_a_script_reads_why_an_act_was_refused(kintsugi: Command) -> None:
    ended = kintsugi("silence", "end", "4000", "--json")
    assert ended.code == exit_codes.FAILED
    assert (ended.json["done"], ended.json["code"]) == (False, exit_codes.FAILED)
    assert "4000" in ended.json["problems"][0]


@pytest.mark.django_db
def test_what_only_reads_says_nothing_beside_its_answer(kintsugi: Command) -> None:
    for verb in VERBS:
        if verb.words[-1] == "list":
            assert kintsugi(*verb.words).err == "", verb.words


# Lists
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb.words))
@pytest.mark.django_db
def test_every_list_is_json_for_scripts(kintsugi: Command, verb: Verb) -> None:
    if verb.words[-1] != "list":
        return
    ended = kintsugi(*verb.words, "--json")
    assert ended.code == exit_codes.OK
    assert isinstance(ended.json, list)


@pytest.mark.django_db
def test_the_worst_incidents_come_first_and_closed_ones_are_left_out(kintsugi: Command) -> None:
    minor = an_incident("nic.link.flap", "node/gn002/nic/mlx5_0", severity="minor")
    critical = an_incident("gpu.xid.79", "node/gn001/gpu/0000:19:00.0", severity="critical")
    closed = an_incident(
        "gpu.xid.48", "node/gn003/gpu/0000:19:00.0", state=State.DUPLICATE, duplicate_of=minor
    )
    assert [row["id"] for row in kintsugi("incident", "list", "--json").json] == [
        critical.pk,
        minor.pk,
    ]
    rows = kintsugi("incident", "list", "--closed", "--json").json
    assert [row["id"] for row in rows] == [closed.pk]
    table = kintsugi("incident", "list").out.splitlines()
    assert table[0].split() == [*["ID", "SEVERITY", "STATE", "WHERE", "SINCE", "FAULTS", "TITLE"]]
    assert table[1].split()[:4] == [str(critical.pk), "critical", "open", "gn001"]


@pytest.mark.django_db
def test_incidents_are_chosen_by_host_lists(kintsugi: Command) -> None:
    found = [
        an_incident("gpu.xid.79", f"node/gn00{number}/gpu/0000:19:00.0") for number in (1, 2, 3)
    ]
    rows = kintsugi("incident", "list", "gn[002-003]", "--json").json
    assert [row["id"] for row in rows] == [incident.pk for incident in found[1:]]


@pytest.mark.django_db
def test_a_list_that_was_cut_says_how_many_are_left_out(kintsugi: Command) -> None:
    for number in range(1, 4):
        an_incident("gpu.xid.79", f"node/gn00{number}/gpu/0000:19:00.0")
    ended = kintsugi("incident", "list", "--limit", "2", "--json")
    assert len(ended.json) == 2
    assert ended.err == "1 more; --limit 3 shows all.\n"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("limit", "bound"),
    [("0", "greater than or equal to 1"), (str(2**63), "less than or equal to 2147483647")],
)
def test_a_limit_that_no_list_has_is_refused_with_its_bound(
    kintsugi: Command, limit: str, bound: str
) -> None:
    ended = kintsugi("incident", "list", "--limit", limit)
    assert ended.code == exit_codes.USAGE
    assert bound in ended.err


@pytest.mark.django_db
def test_an_incident_shows_its_faults_and_its_runs(kintsugi: Command) -> None:
    run = a_run()
    shown = kintsugi("incident", "show", f"#{run.incident_id}", "--json").json
    assert [row["type"] for row in shown["members"]] == ["gpu.xid.79"]
    assert shown["members"][0]["incident"] == run.incident_id
    assert [(row["id"], row["runbook"]) for row in shown["runs"]] == [(run.pk, "reboot")]
    text = kintsugi("incident", "show", str(run.incident_id)).out
    assert "gpu.xid.79" in text
    assert f"kintsugi incident why {run.incident_id}" in text


@pytest.mark.django_db
def test_an_incident_shows_what_kintsugi_does_and_what_a_person_does_about_it(
    kintsugi: Command,
) -> None:
    incident = an_incident("gpu.ecc.unrepairable", "node/gn001/gpu/0000:19:00.0")
    shown = kintsugi("incident", "show", str(incident.pk), "--json").json
    assert shown["kintsugi"] == story.DOING[State.OPEN]
    assert "nvidia-smi" in shown["advice"]
    assert "ADVICE" in kintsugi("incident", "show", str(incident.pk)).out


@pytest.mark.django_db
def test_faults_that_stand_are_listed_with_their_incident_or_none(kintsugi: Command) -> None:
    incident = an_incident()
    alone = a_fault("gpu.xid.48", "node/gn002/gpu/0000:19:00.0")
    a_fault("gpu.xid.48", "node/gn003/gpu/0000:19:00.0", is_active=False)
    rows = kintsugi("fault", "list", "--json").json
    assert {row["id"]: row["incident"] for row in rows} == {
        incident.root_fault_id: incident.pk,
        alone.pk: None,
    }


@pytest.mark.django_db
def test_nodes_show_what_slurm_had_of_them_and_fold_into_a_host_list(kintsugi: Command) -> None:
    nodes = [a_node(f"gn{number:03d}") for number in (1, 2, 3, 5)]
    an_interval(nodes[1].name, holder="yuki", reason="yuki: tray")
    an_interval(nodes[2].name)
    rows = {row["name"]: row["slurm"] for row in kintsugi("node", "list", "--json").json}
    assert rows == {
        "gn001": None,
        "gn002": "out: yuki: tray",
        "gn003": "in service",
        "gn005": None,
    }
    assert kintsugi("node", "list", "--fold").out == "gn[001-003,005]\n"
    assert kintsugi("node", "list", "--out", "--fold").out == "gn002\n"


@pytest.mark.django_db
def test_a_node_shows_its_incidents(kintsugi: Command) -> None:
    incident = an_incident(resource="node/gn001/gpu/0000:19:00.0")
    shown = kintsugi("node", "show", "gn001", "--json").json
    assert shown["incidents"] == [incident.pk]
    assert [row["id"] for row in shown["latest_incidents"]] == [incident.pk]
    assert kintsugi("node", "list", "--ill", "--fold").out == "gn001\n"


@pytest.mark.django_db
def test_a_node_shows_what_it_was_in_slurm_and_who_kept_it_out(kintsugi: Command) -> None:
    a_node("gn001")
    an_interval("gn001", holder="yuki", reason="yuki: tray", until=NOW + timedelta(hours=1))
    an_interval("gn001", at=NOW + timedelta(hours=1))
    now, before = kintsugi("node", "show", "gn001", "--json").json["slurm_states"]
    assert (now["in_service"], now["until"], now["kept_out_by"]) == (True, None, "")
    assert (before["in_service"], before["kept_out_by"]) == (False, "yuki")
    assert before["until"] == now["since"]
    assert "yuki: tray" in kintsugi("node", "show", "gn001").out


@pytest.mark.django_db
def test_nodes_that_are_out_are_listed_as_sinfo_does_ours_beside_theirs(kintsugi: Command) -> None:
    run = a_run(waiting_for="1 job is still on gn001 (77 of alice).")
    ours = f"kintsugi:{run.incident_id}/1a2b-3c gpu.xid.79: GPU has fallen off the bus"
    later = NOW + timedelta(minutes=5)
    an_interval("gn001", holder="Kintsugi", reason=ours, reason_set_by="root", reason_set_at=later)
    for number in (17, 18, 20):
        theirs = {"reason": "yuki: trays", "reason_set_by": "yuki", "reason_set_at": NOW}
        an_interval(f"gn{number:03d}", holder="yuki", **theirs)
    an_interval("gn021", holder="Slurm itself")
    an_interval("gn022", reason="yuki: left from last week")
    ended = kintsugi("nodes", "--json")
    assert ended.code == exit_codes.OK
    rows = {row["nodelist"]: row for row in ended.json}
    assert list(rows) == ["gn[017-018,020]", "gn001", "gn021"]
    assert (rows["gn[017-018,020]"]["kept_by"], rows["gn[017-018,020]"]["incident"]) == (
        "yuki",
        None,
    )
    assert rows["gn001"]["incident"] == run.incident_id
    assert rows["gn001"]["reason"] == ours
    assert "77 of alice" in rows["gn001"]["kintsugi"]
    assert rows["gn001"]["is_ours"]
    assert rows["gn021"]["reason"] == ""
    heading, first, *_ = kintsugi("nodes").out.splitlines()
    columns = ["REASON", "USER", "TIMESTAMP", "NODELIST", "KEPT BY", "INCIDENT", "KINTSUGI"]
    assert [word for word in re.split(r"\s{2,}", heading) if word] == columns
    assert re.split(r"\s{2,}", first)[:2] == ["yuki: trays", "yuki"]


@pytest.mark.django_db
def test_what_kintsugi_holds_and_does_nothing_about_says_what_people_are_asked(
    kintsugi: Command,
) -> None:
    incident = an_incident(needs_human="Call the vendor.", state=State.REPAIRING)
    an_interval("gn042", holder="Kintsugi", reason=f"kintsugi:{incident.pk} gpu.lost: gone")
    gone = f"kintsugi:{incident.pk + 1} gpu.lost: gone"
    an_interval("gn043", holder="Kintsugi", reason=gone)
    rows = {row["nodelist"]: row for row in kintsugi("nodes", "--json").json}
    assert rows["gn042"]["kintsugi"] == "Asks: Call the vendor."
    assert rows["gn043"]["kintsugi"] == f"There is no incident #{incident.pk + 1} any more."
    assert [row["nodelist"] for row in kintsugi("nodes", "gn[043-050]", "--json").json] == ["gn043"]


@pytest.mark.django_db
def test_nodes_say_on_stderr_how_old_the_picture_is(kintsugi: Command) -> None:
    never = kintsugi("nodes")
    assert (never.out, "not been looked at" in never.err) == ("No node is out of service.\n", True)
    node_states.record_silence(timezone.now(), "slurmctld is away")
    assert "slurmctld is away" in kintsugi("nodes").err


@pytest.mark.django_db
def test_runs_are_listed_while_they_are_not_finished(kintsugi: Command) -> None:
    run = a_run(waiting_for="Jobs end by 14:00.")
    StepRun.objects.create(run=run, index=0, name="drain", outcome="done", started_at=NOW)
    (row,) = kintsugi("run", "list", "--json").json
    assert (row["id"], row["waits_for"]) == (run.pk, "Jobs end by 14:00.")
    assert kintsugi("run", "show", str(run.pk), "--json").json["steps"][0]["step"] == "drain"
    Run.objects.update(state=RunState.SUCCEEDED, finished_at=NOW + timedelta(hours=1))
    assert kintsugi("run", "list").out == "No run.\n"
    assert [row["id"] for row in kintsugi("run", "list", "--finished", "--json").json] == [run.pk]


@pytest.mark.django_db
def test_questions_are_listed_with_their_answers_and_answered(kintsugi: Command) -> None:
    run = a_run(plan=[{"step": "ask_person", "with": {"answers": ["yes", "no"]}}])
    row = Question.objects.create(run=run, key=f"{run.pk}-0-0", text="Is it in?", asked_at=NOW)
    (listed,) = kintsugi("question", "list", "--json").json
    assert (listed["question"], listed["answers"]) == ("Is it in?", ["yes", "no"])
    assert kintsugi("question", "answer", str(row.pk), "yes").code == exit_codes.OK
    assert kintsugi("question", "list").out == "No question.\n"


@pytest.mark.django_db
def test_the_breaker_ends_with_1_while_it_has_tripped(kintsugi: Command) -> None:
    assert kintsugi("breaker", "show").code == exit_codes.OK
    Breaker.objects.create(why="12 of 100 nodes at once", tripped_at=NOW)
    ended = kintsugi("breaker", "show", "--json")
    assert (ended.code, ended.json["why"]) == (exit_codes.FAILED, "12 of 100 nodes at once")
    assert kintsugi("breaker", "close", "--reason", "a switch").code == exit_codes.OK
    assert kintsugi("breaker", "show").code == exit_codes.OK


@pytest.mark.django_db
def test_a_change_is_told_of_with_its_machines_and_listed(kintsugi: Command) -> None:
    for name in ("gn001", "gn002"):
        a_node(name)
    what = ("--summary", "a new kernel", "--by", "ada", "--at", "2025-01-15T01:00:00+00:00")
    told = kintsugi("change", "add", *what, "--on", "gn[001-002]", "--ref", "a1b2c3d")
    assert told.code == exit_codes.OK
    assert "is recorded" in told.out
    assert kintsugi("change", "add", "--summary", "a new switch image").code == exit_codes.OK
    everywhere, kernel = kintsugi("change", "list", "--json").json
    assert (everywhere["what"], everywhere["on"]) == ("a new switch image", "the whole site")
    assert (kernel["by"], kernel["on"], kernel["reference"]) == ("ada", "gn001, gn002", "a1b2c3d")
    refused = kintsugi("change", "add", "--summary", "a new kernel", "--on", "gn[008-009]")
    assert refused.code == exit_codes.USAGE
    assert "gn008, gn009" in refused.err
    assert SiteChange.objects.count() == 2


def test_host_lists_need_no_site(tmp_path: Path) -> None:
    ended = in_a_process("hosts", "expand", "gn[001-003]", "mt1", cwd=tmp_path)
    assert ended.stdout.split() == ["gn001", "gn002", "gn003", "mt1"]
    folded = in_a_process("hosts", "fold", *ended.stdout.split(), cwd=tmp_path)
    assert folded.stdout == "gn[001-003],mt1\n"
    assert list(tmp_path.iterdir()) == []


def test_the_shell_completes_objects_and_verbs_without_a_site(tmp_path: Path) -> None:
    completed = in_a_process(
        cwd=tmp_path,
        _KINTSUGI_COMPLETE="complete_bash",
        COMP_WORDS="kintsugi incident ",
        COMP_CWORD="2",
    )
    assert completed.stdout.split() == ["list", "show", "why"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.django_db
class TestUnread:
    @pytest.fixture(autouse=True)
    def key(self) -> str:
        line = UnreadLine("gn042", "kernel", "quux failed", 3, NOW, NOW, 2, "quux failed")
        unread_lines.record([line], NOW)
        return str(UnreadTemplate.objects.get().key)

    def test_templates_are_listed(self, kintsugi: Command, key: str) -> None:
        [row] = kintsugi("unread", "list", "gn042", "--json").json
        assert (row["key"], row["template"], row["lines"]) == (key, "quux failed", 2)
        assert kintsugi("unread", "list", "gn007").out == "No unread line.\n"

    def test_one_is_shown_with_its_machines(self, kintsugi: Command, key: str) -> None:
        shown = kintsugi("unread", "show", key)
        assert "> quux failed" in shown.out
        assert "gn042" in shown.out
        [machine] = kintsugi("unread", "show", key, "--json").json["on"]
        assert machine["machine"] == "gn042"

    def test_another_key_is_refused(self, kintsugi: Command) -> None:
        refused = kintsugi("unread", "show", "nothing")
        assert refused.code == exit_codes.FAILED
        assert "kintsugi unread list" in refused.err

    def test_a_row_is_drafted_with_what_it_would_have_done(
        self, kintsugi: Command, key: str
    ) -> None:
        unread_lines.record([_unread_now()], timezone.now())
        shown = kintsugi("unread", "draft", key, "--type", "node.kernel.panic")
        assert shown.code == 0
        assert 'pattern = "quux failed"' in shown.out
        assert "would have raised node.kernel.panic: 4 lines" in shown.out
        silent = kintsugi("unread", "draft", key, "--harmless", "A test bench.")
        assert "no longer unread: quux failed (4 lines)" in silent.out
        assert UnreadTemplate.objects.exists()

    def test_a_row_that_is_written_counts_and_its_template_is_gone(
        self, kintsugi: Command, key: str, tmp_path: Path, settings: Any
    ) -> None:
        settings.KINTSUGI = settings.KINTSUGI | {"KINTSUGI_CATALOG_DIR": tmp_path}
        for _ in range(2):
            unread_lines.record([_unread_now()], timezone.now())
            key = UnreadTemplate.objects.get().key
            done = kintsugi("unread", "draft", key, "--harmless", "A test bench.", "--write")
            assert done.code == 0, done.err
            assert not UnreadTemplate.objects.exists()
        rows = catalog.read([*catalog.files(), tmp_path / "unread.toml"])
        reasons = [row.reason for row in rows.harmless if row.source == "this site"]
        assert reasons == ["A test bench."] * 2

    def test_a_row_that_does_not_load_is_refused_with_its_reason(
        self, kintsugi: Command, key: str, tmp_path: Path, settings: Any
    ) -> None:
        settings.KINTSUGI = settings.KINTSUGI | {"KINTSUGI_CATALOG_DIR": tmp_path}
        words = ("unread", "draft", key, "--write", "--type", "node.kernel.panic", "--on", "nic")
        refused = kintsugi(*words)
        assert refused.code == exit_codes.FAILED
        assert "a signature on nic needs a group named pci or interface" in refused.err
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("pattern", "instead"),
        [
            (r"(q)uux \1", "write a second pattern in `unless` instead"),
            ("quux (?=failed)", "write a second pattern in `unless` instead"),
            ("quux (?>x+)y", "https://github.com/google/re2/wiki/Syntax"),
        ],
        ids=["back-reference", "look-ahead", "atomic group"],
    )
    def test_a_draft_whose_pattern_is_not_linear_is_refused_and_says_what_to_write_instead(
        self, kintsugi: Command, key: str, pattern: str, instead: str
    ) -> None:
        words = ("--type", "node.kernel.panic", "--pattern", pattern)
        refused = kintsugi("unread", "draft", key, *words)
        assert refused.code == exit_codes.FAILED
        assert instead in refused.err

    def test_one_of_both_must_be_said(self, kintsugi: Command, key: str) -> None:
        assert "--harmless REASON and --type TYPE" in kintsugi("unread", "draft", key).err


def _unread_now() -> UnreadLine:
    return UnreadLine("gn042", "kernel", "quux failed", 3, NOW, NOW, 2, "kernel: quux failed")
