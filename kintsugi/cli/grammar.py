"""Every verb of `kintsugi`, in one table: what it is called, what it does, and what runs it.

A verb is a function of ours, or one of the management commands with its first words. Nothing of
Django is imported before a verb that needs it is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Needs(Enum):
    """What must be there before a verb begins."""

    NOTHING = "nothing: neither settings nor database"
    SETTINGS = "settings"
    DATABASE = "settings and a database with Kintsugi's tables"


@dataclass(frozen=True)
class Verb:
    """`words`: object and verb, or a verb alone. One of `function` and `manage` is given.

    `passes_on`: the function reads all further words itself; management commands always do.
    """

    words: tuple[str, ...]
    help: str
    function: str = ""  # module:function
    manage: tuple[str, ...] = ()  # the management command, and its first words
    is_change: bool = False  # says which site it speaks to before it begins
    needs: Needs = Needs.DATABASE
    passes_on: bool = False


OBJECTS = {
    "incident": "incidents: what is wrong, since when, why it is one incident",
    "fault": "faults that stand: what incidents are made of",
    "unread": "log lines of failures that nobody reads: no signature takes them",
    "node": "nodes of the inventory, and what is wrong with them",
    "token": "the tokens with which nodes' own checks speak",
    "run": "repairs: what they did, what they wait for",
    "approval": "acts that wait for a person's approval",
    "question": "what runs ask people",
    "runbook": "runbooks: what they are, what they would do, and a run that people ask for",
    "mode": "how far each runbook may go",
    "arming": "how far a runbook may go on some nodes, until when, for how many runs",
    "breaker": "the breaker, which ends all acts when many nodes turn bad at once",
    "silence": "faults that people are not told of for a time",
    "maintenance": "machines that people work on",
    "change": "what was changed at the site: shown in incidents that begin in the day after",
    "decommission": "nodes that are being taken away for good",
    "spare": "hot spares",
    "vendor": "cases with vendors, and the parts that they replace",
    "inventory": "what should be there, from files, Slurm and the machines",
    "site": "the site that this command speaks to",
    "history": "what ended long ago, in files and in the database",
    "hosts": "Slurm's host lists: gn[001-004]",
    "simulator": "the simulated cluster, where kintsugi[simulator] is installed",
}

_WINDOW_VERBS = {
    "list": "those in force and planned",
    "add": "begin one, now or later",
    "change": "another end, review or reason",
    "end": "end one now",
}
_LISTS = "kintsugi.cli.lists"
_INCIDENTS = "kintsugi.cli.incidents"
_RUNS = "kintsugi.cli.runs"
_NODES = "kintsugi.cli.nodes"
_UNREAD = "kintsugi.cli.unread"
_SITE_TOOLS = "kintsugi.cli.site_tools"


def _build_window_verbs(name: str) -> tuple[Verb, ...]:
    verbs = []
    for verb, text in _WINDOW_VERBS.items():
        words = (name, verb)
        verbs.append(Verb(words, text, manage=words, is_change=verb != "list"))
    return tuple(verbs)


VERBS: tuple[Verb, ...] = (
    Verb(("up",), "web, workers, beat and receiver in one process", manage=("up",)),
    Verb(
        ("receive",),
        "syslog and SNMP notifications into the spool",
        manage=("receive",),
        needs=Needs.SETTINGS,
    ),
    Verb(
        ("check",),
        "what is wrong with settings, rules and runbooks, and which parts do not get on",
        manage=("check",),
        needs=Needs.SETTINGS,
    ),
    Verb(
        ("migrate",),
        "make or bring forward the tables of the database",
        manage=("migrate",),
        is_change=True,
        needs=Needs.SETTINGS,
    ),
    Verb(
        ("settings",),
        "every setting, its value and what it may be",
        manage=("settings",),
        needs=Needs.SETTINGS,
    ),
    Verb(("preflight",), "what arming a runbook needs; touches nothing", manage=("preflight",)),
    Verb(
        ("stop",),
        "engage the stop switch, or release it: --release",
        manage=("stop",),
        is_change=True,
    ),
    Verb(
        ("drain",),
        "a check of yours asks for nodes to be taken out of service, or no longer: --end",
        f"{_SITE_TOOLS}:drain_nodes",
        is_change=True,
    ),
    Verb(
        ("nodes",),
        "nodes that take no jobs, as `sinfo -R`: why, since when, whose, what Kintsugi does",
        f"{_NODES}:list_out",
    ),
    Verb(
        ("status",),
        "the parts of Kintsugi itself: which run, since when, what keeps them from their work",
        f"{_LISTS}:show_status",
    ),
    Verb(
        ("restored",),
        "after a restore from a backup: stop, end runs, move numbers on, list unknown drains",
        manage=("restored",),
        is_change=True,
    ),
    Verb(
        ("leave",),
        "the way out: end runs, hand drains over, write history, remove keys; lists without --yes",
        manage=("leave",),
        is_change=True,
    ),
    Verb(
        ("history", "prune"),
        "write what is older than KINTSUGI_KEEP to files, and remove it",
        manage=("history", "prune"),
        is_change=True,
    ),
    Verb(
        ("history", "export"),
        "write what ended before a day to files; remove nothing",
        manage=("history", "export"),
    ),
    Verb(("reliability",), "MTBF, MTTR and their definitions", manage=("reliability",)),
    Verb(
        ("explain",),
        "what Kintsugi makes of log lines",
        "kintsugi.cli.detectors:explain",
        needs=Needs.NOTHING,
        passes_on=True,
    ),
    Verb(
        ("parse",),
        "what a detector makes of a captured output",
        "kintsugi.cli.detectors:parse",
        needs=Needs.NOTHING,
        passes_on=True,
    ),
    Verb(
        ("replay",),
        "play log files, or this site's last days by other rules",
        manage=("replay",),
        needs=Needs.SETTINGS,
    ),
    Verb(
        ("manage",),
        "any management command of Django",
        "kintsugi.cli.management:manage",
        is_change=True,
        needs=Needs.SETTINGS,
        passes_on=True,
    ),
    Verb(
        ("incident", "list"),
        "incidents that are not closed, the worst first",
        f"{_INCIDENTS}:list_incidents",
    ),
    Verb(
        ("incident", "show"),
        "one incident: what, where, since when, its repairs",
        f"{_INCIDENTS}:show_incident",
    ),
    Verb(
        ("incident", "why"),
        "why it is as it is: what was joined, held and moved, by which rule",
        manage=("why",),
    ),
    Verb(("fault", "list"), "faults that stand", f"{_INCIDENTS}:list_faults"),
    Verb(
        ("fault", "refuted"),
        "fault types whose rule was wrong: told of, and not there, how often",
        f"{_LISTS}:list_wrong_rules",
    ),
    Verb(
        ("unread", "list"),
        "templates of unread lines, the newest first",
        f"{_UNREAD}:list_unread",
    ),
    Verb(
        ("unread", "show"),
        "one of them: its lines, and the machines that printed them",
        f"{_UNREAD}:show_unread",
    ),
    Verb(
        ("unread", "draft"),
        "a row of the site's catalogue for it, and what that would have done last week",
        f"{_UNREAD}:draft_row",
        is_change=True,
    ),
    Verb(
        ("node", "list"),
        "nodes with their incidents and what Slurm showed of them",
        f"{_NODES}:list_nodes",
    ),
    Verb(
        ("node", "show"),
        "one node: parts, incidents, what it was in Slurm and who kept it out",
        f"{_NODES}:show_node",
    ),
    Verb(
        ("node", "token"),
        "create tokens for kintsugi-check --post",
        manage=("node_token", "create"),
        is_change=True,
    ),
    Verb(
        ("token", "list"),
        "valid tokens of nodes: till when, and where last used",
        manage=("node_token", "list"),
    ),
    Verb(
        ("token", "create"),
        "one more token for each node, shown this once",
        manage=("node_token", "create"),
        is_change=True,
    ),
    Verb(
        ("token", "rotate"),
        "new tokens; those of before end in a week",
        manage=("node_token", "rotate"),
        is_change=True,
    ),
    Verb(
        ("token", "revoke"),
        "refused from now on: a node's, or one by --id",
        manage=("node_token", "revoke"),
        is_change=True,
    ),
    Verb(("run", "list"), "runs that are not finished", f"{_RUNS}:list_runs"),
    Verb(("run", "show"), "one run, step by step", f"{_RUNS}:show_run"),
    Verb(("approval", "list"), "what waits for approval", f"{_RUNS}:list_approvals"),
    Verb(
        ("approval", "give"),
        "show a run's state, and approve it with --seen MARK",
        manage=("approve",),
        is_change=True,
    ),
    Verb(("question", "list"), "questions that nobody has answered", f"{_RUNS}:list_questions"),
    Verb(("question", "answer"), "answer one: NUMBER WORDS", manage=("answer",), is_change=True),
    Verb(("runbook", "list"), "all runbooks with their modes", f"{_LISTS}:list_runbooks"),
    Verb(("runbook", "show"), "what one does, step by step", manage=("runbook", "show")),
    Verb(
        ("runbook", "lint"),
        "check files, or the whole library",
        manage=("runbook", "lint"),
        needs=Needs.SETTINGS,
    ),
    Verb(
        ("runbook", "simulate"),
        "what one would do on a node now; touches nothing",
        manage=("runbook", "simulate"),
    ),
    Verb(
        ("runbook", "start"),
        "start one for an incident",
        manage=("runbook", "start"),
        is_change=True,
    ),
    Verb(
        ("runbook", "report"),
        "what dry runs say of it: three numbers with exact bounds",
        f"{_LISTS}:report_dry_runs",
    ),
    Verb(("mode", "list"), "how far each runbook may go", f"{_LISTS}:list_modes"),
    Verb(
        ("mode", "set"), "RUNBOOK|site off|shadow|approval|armed", manage=("mode",), is_change=True
    ),
    Verb(("arming", "list"), "those in force", f"{_SITE_TOOLS}:list_armings"),
    Verb(
        ("arming", "add"),
        "let a runbook go so far on some nodes, until then",
        f"{_SITE_TOOLS}:add_arming",
        is_change=True,
    ),
    Verb(
        ("arming", "propose"),
        "what may be armed next by the record, or what that lacks",
        f"{_SITE_TOOLS}:propose_armings",
    ),
    Verb(("arming", "end"), "take one back now", f"{_SITE_TOOLS}:end_arming", is_change=True),
    Verb(
        ("arming", "requests"),
        "what waits for a second person",
        f"{_SITE_TOOLS}:list_requests",
    ),
    Verb(
        ("arming", "confirm"),
        "show what another person asks for, and confirm it with --seen MARK",
        f"{_SITE_TOOLS}:confirm_request",
        is_change=True,
    ),
    Verb(
        ("arming", "reject"),
        "nothing comes of a request: say no, or take yours back",
        f"{_SITE_TOOLS}:reject_request",
        is_change=True,
    ),
    Verb(("breaker", "show"), "whether it has tripped, and why", f"{_LISTS}:show_breaker"),
    Verb(
        ("breaker", "close"),
        "let nodes be taken out of service again",
        manage=("breaker", "--close"),
        is_change=True,
    ),
    *_build_window_verbs("silence"),
    *_build_window_verbs("maintenance"),
    Verb(
        ("change", "add"),
        "tell of a change, from a commit hook, a playbook or by hand",
        f"{_SITE_TOOLS}:add_change",
        is_change=True,
    ),
    Verb(("change", "list"), "what was told of, the last first", f"{_SITE_TOOLS}:list_changes"),
    Verb(("decommission", "list"), "nodes that leave", manage=("decommission", "list")),
    Verb(
        ("decommission", "add"),
        "nodes that leave: runs on them stop",
        manage=("decommission", "add"),
        is_change=True,
    ),
    Verb(
        ("decommission", "end"),
        "nodes that stay after all",
        manage=("decommission", "end"),
        is_change=True,
    ),
    Verb(("spare", "list"), "the pool, and who stands in for whom", f"{_LISTS}:list_spares"),
    Verb(
        ("spare", "add"),
        "a node that stands in for others from now on",
        manage=("spare", "add"),
        is_change=True,
    ),
    Verb(("spare", "remove"), "no spare any more", manage=("spare", "remove"), is_change=True),
    Verb(
        ("spare", "return"),
        "give back one that stands in",
        manage=("spare", "return"),
        is_change=True,
    ),
    Verb(("vendor", "list"), "cases that are not closed", manage=("vendor", "list")),
    Verb(("vendor", "open"), "a case for an incident", manage=("vendor", "open"), is_change=True),
    Verb(
        ("vendor", "move"),
        "what happened to a case or its part",
        manage=("vendor", "move"),
        is_change=True,
    ),
    Verb(
        ("vendor", "note"),
        "number, vendor, advance replacement",
        manage=("vendor", "note"),
        is_change=True,
    ),
    Verb(("vendor", "bundle"), "the evidence as one archive", manage=("vendor", "bundle")),
    Verb(("vendor", "times"), "how long each stage takes", manage=("vendor", "times")),
    Verb(
        ("inventory", "import"), "from TOML files", manage=("inventory", "import"), is_change=True
    ),
    Verb(
        ("inventory", "from-slurm"),
        "nodes and partitions as Slurm has them",
        manage=("inventory", "from-slurm"),
        is_change=True,
    ),
    Verb(
        ("inventory", "discover"),
        "serials, addresses and cables as the machines say",
        manage=("inventory", "discover"),
        is_change=True,
    ),
    Verb(
        ("inventory", "rename"),
        "a node has another name in Slurm: history, runs and drain go with it",
        manage=("inventory", "rename"),
        is_change=True,
    ),
    Verb(("inventory", "check"), "what is wrong with it", manage=("inventory", "check")),
    Verb(
        ("inventory", "expected"),
        "what should be found on a node, as JSON",
        manage=("inventory", "expected"),
    ),
    Verb(
        ("inventory", "host-keys"),
        "SSH host keys: show them, pin them",
        manage=("inventory", "host-keys"),
        is_change=True,
    ),
    Verb(
        ("inventory", "sudoers"),
        "the lines that let detectors read what root alone may",
        manage=("inventory", "sudoers"),
    ),
    Verb(
        ("site", "show"),
        "which site, database and settings this command uses",
        "kintsugi.cli.site:show_site",
        needs=Needs.SETTINGS,
    ),
    Verb(
        ("hosts", "expand"),
        "gn[001-003] name by name",
        "kintsugi.cli.hosts:expand_hosts",
        needs=Needs.NOTHING,
    ),
    Verb(
        ("hosts", "fold"),
        "names as one host list",
        "kintsugi.cli.hosts:fold_hosts",
        needs=Needs.NOTHING,
    ),
    Verb(
        ("simulator", "run"),
        "a simulated cluster and Kintsugi watching it",
        "kintsugi.cli.simulator:run_simulator",
        needs=Needs.NOTHING,
        passes_on=True,
    ),
    Verb(
        ("simulator", "inject"),
        "something goes wrong in the running one",
        manage=("inject",),
        needs=Needs.SETTINGS,
    ),
    Verb(
        ("simulator", "replay"),
        "play scenarios' folders",
        manage=("replay",),
        needs=Needs.SETTINGS,
    ),
    Verb(
        ("simulator", "scenario"),
        "make a labelled stream of faults, or score one",
        manage=("scenario",),
        needs=Needs.SETTINGS,
    ),
)
