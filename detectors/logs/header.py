"""Takes the header off one log line: when, which host, which program, and how often. Total on any
bytes.

Never decides what a line means, and never reads a clock: `observed_at` and the source's zone are
arguments. Known forms: RFC 5424, RFC 3164 as devices really write it (with and without year, host,
zone, microseconds, priority words), ISO stamps, dmesg in all its time formats, /dev/kmsg,
journalctl's short forms and its JSON, `talosctl dmesg`, Cisco-like stamps, rows of `ipmitool sel
list`, and any of them behind the node's name that pdsh, clush and talosctl put before each line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone, tzinfo
from enum import Enum
from typing import NamedTuple

from detectors.logs import journal_json
from detectors.resources import printable, short_host

MAX_TEXT = 64 * 1024
# Enough of a line to tell it from the next one; a key is a hash in the database anyway.
_KEY_TEXT = 1024
_BOM = "\ufeff"
# A stamp without a year is of the past: no clock of a watched machine runs further ahead than a
# day.
_AHEAD = timedelta(days=1)

# RFC 5424 section 6.2.1, and the words that SONiC's template and journald print for them.
_SEVERITIES = {
    word: rank
    for rank, words in enumerate(
        (
            "EMERG PANIC",
            "ALERT",
            "CRIT CRITICAL",
            "ERR ERROR",
            "WARNING WARN",
            "NOTICE",
            "INFO",
            "DEBUG",
        )
    )
    for word in words.split()
}
_MONTH_NAMES = "jan feb mar apr may jun jul aug sep oct nov dec"
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES.split(), 1)}
# Names with one meaning: RFC 5322 section 4.3, and the zones that switches print. Others mean the
# source's own zone.
_ZONE_HOURS = {
    "UTC": 0, "GMT": 0, "Z": 0,
    "EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7,
    "CET": 1, "CEST": 2, "EET": 2, "EEST": 3, "JST": 9, "AEST": 10, "AEDT": 11,
}  # fmt: skip
_ZONE_NAMES = "|".join(name for name in _ZONE_HOURS if name != "Z")

# Abbreviations of glibc's other locales (localedata, abmon), in which journalctl and `dmesg -T`
# print stamps: de, nl, sv; fr; es; pt; it; fi.
_MONTHS |= {"mai": 5, "okt": 10, "dez": 12, "mrt": 3, "mei": 5, "maj": 5}
_MONTHS |= {"janv": 1, "févr": 2, "mars": 3, "avril": 4, "juin": 6, "juil": 7, "août": 8, "sept": 9}
_MONTHS |= {"déc": 12, "ene": 1, "abr": 4, "ago": 8, "dic": 12, "fev": 2, "set": 9, "out": 10}
_MONTHS |= {"gen": 1, "mag": 5, "giu": 6, "lug": 7, "ott": 10, "tammi": 1, "helmi": 2}
_MONTHS |= {"maalis": 3, "huhti": 4, "touko": 5, "kesä": 6, "heinä": 7, "elo": 8, "syys": 9}
_MONTHS |= {"loka": 10, "marras": 11, "joulu": 12}

_HALF_A_YEAR = timedelta(days=182)

# Comware puts a colon before its milliseconds, and the year behind them.
_CLOCK = (
    r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)"
    r"(?:(?P<point>[.,]|:(?=\d{3} (?:19|20)\d\d ))(?P<frac>\d+)(?:\.\d+)?)?"
)
_ISO = re.compile(
    r"(?P<year>\d{4})[-/](?P<month>\d{1,2})[-/](?P<day>\d{1,2})[Tt ]\s?"
    + _CLOCK
    + rf"(?P<offset>\s?[+-]\d\d:?\d\d(?!\d)|[Zz](?![\w]))?(?:\s(?P<zone>{_ZONE_NAMES})(?![\w.-]))?"
)
# A date without marks between its parts, as ISO 8601 calls its basic format. A program wrote it.
_BASIC = re.compile(
    r"(?P<year>(?:19|20)\d\d)(?P<month>[01]\d)(?P<day>[0-3]\d)[Tt _-]"
    + _CLOCK
    + r"(?P<offset>\s?[+-]\d\d:?\d\d(?!\d)|[Zz](?![\w]))?(?:\s(?P<zone>UTC|GMT)(?!\w))?(?!\w)"
)
# As switches of Cisco's small series write it, and BIND.
_DAY_FIRST = re.compile(
    r"(?P<day>\d{1,2})-(?P<name>[A-Z][a-z]{2})-(?P<year>(?:19|20)\d\d) "
    + _CLOCK
    + r"(?P<offset>)(?P<zone>)"
)
# A row of `ipmitool sel list`, whose date has the month first (lib/ipmi_sel.c, ipmi_time.c:
# %m/%d/%Y, and %x since 1.8.19), or that has none yet; with `-c` commas part its columns.
_SEL_ROW = re.compile(
    r" {0,4}(?P<id>[0-9a-f]{1,4})(?: \| |,)"
    r"(?:(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>(?:20)?\d\d)(?: \| |,)"
    + _CLOCK
    + r"(?: (?P<zone>[A-Z]{2,5}))?| ?Pre-Init  ?[|,](?P<since>\d{10}))(?: ?\| |(?P<comma>,))"
)
# Such a row without number and date, as consoles of controllers show it and people copy it.
_SEL_EVENT = re.compile(
    r"[A-Z][\w /.-]{1,40} #0x[0-9a-f]{2} \| [^|]{2,120} \| (?:Asserted|Deasserted)\s*$"
)
# A row of `log-util` of Meta's OpenBMC: number and name of the part, when, who says it
# (facebook/openbmc, common/recipes-core/log-util-v2, selformat.cpp).
_LOG_UTIL = re.compile(
    r"\d{1,3} {1,6}[A-Za-z][\w-]{1,20} {1,16}"
    r"(?P<stamp>(?:19|20)\d\d-\d\d-\d\d \d\d:\d\d:\d\d) {2,6}"
    r"(?P<program>[a-z][\w.-]{1,30}) {1,16}(?=\S)"
)
# A row of `ras-mc-ctl --errors`: a number, when, and what rasdaemon wrote down
# (mchehab/rasdaemon, util/ras-mc-ctl.in: errors).
_RAS_ROW = re.compile(
    r"\d{1,9} (?P<stamp>(?:19|20)\d\d-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}) "
    r"(?=error: |\d{1,9} [A-Z]\w{3,12} error\(s\): "
    r"|\S{4,40} (?:Corrected|Uncorrected \([\w-]{5,9}\)) error: )"
)
_BSD = re.compile(
    r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|[^\W\d_]{2,4}\.?(?=,?\s+[^\W\d_]{3,6}\.?\s+\d)),?\s+)?"
    r"(?:(?P<year>\d{4})\s+)?"
    # A month by its number: glibc's ja_JP, zh_CN and zh_TW, as journalctl prints it there.
    r"(?:(?P<name>[^\W\d_]{3,6})\.?|(?P<month>\d{1,2})月)\s+(?P<day>\d{1,2})"
    r"(?:,?\s+(?P<year2>\d{4}))?\s+" + _CLOCK + r"(?:\s+(?P<year3>(?:19|20)\d\d)(?=[\s\[\]:]|$))?"
    r"(?:\s(?P<zone>UTC|GMT|[A-Z]{2,5}(?=\s?:|\s(?:19|20)\d\d[\s\]])))?"
    r"(?P<year4>\s(?:19|20)\d\d(?=[\s\]]))?"
)
# `journalctl --output=short-unix`: seconds since 1970, and a machine with a program behind them.
_UNIX = re.compile(
    r"(?P<at>\d{10})\.(?P<frac>\d{6})(?= [\w.-]{1,253} [\w./@-]{1,80}(?:\[\d{1,10}\])?: )"
)
# `dmesg --reltime`: the day and the minute once, then what has passed since.
_DMESG_MINUTE = re.compile(r"\[([A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d)\]\s?")
_PRI = re.compile(r"<(\d{1,3})>")
_RFC5424 = re.compile(r"1 (?P<stamp>\S+) (?P<host>\S+) (?P<program>\S+) (?P<pid>\S+) (?P<id>\S+) ?")
_ELEMENT = re.compile(r'\[[^\s\]="]+(?: [^\s\]="]+="(?:[^"\\]|\\.)*")*\]')
_BOOT = re.compile(r'\b_?(?:boot_id|BOOT_ID)="([0-9a-fA-F-]{32,36})"')
_KERNEL = re.compile(
    r"\[\s*(?:(\d{1,10}\.\d{3,9})(?:\s?| <\s*\d{1,9}\.\d{1,9}>)"
    r"|\d{1,10}(?:\.\d{1,2}s?|s)|\+\d{1,6}\.\d{3,9}|[TC]\d{1,10})\]"
    r"(?:\s?\[\s*[TC]\d+\])?\s?"
)
# The thread or the processor that printed a message (CONFIG_PRINTK_CALLER), as `dmesg --ctime` of
# util-linux 2.40 shows it behind its stamp.
_CALLER = re.compile(r"^\[\s*[TC]\d+\]\s")
# `dmesg --decode`: facility and level of the message before it (util-linux, sys-utils/dmesg.c).
_DECODED = re.compile(
    r"(?P<facility>kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local[0-7])"
    r" {0,5}:(?P<level>emerg|alert|crit|err|warn|notice|info|debug) {0,5}: "
)
# `talosctl dmesg`: the node's name or address, facility, level and time (siderolabs/talos,
# internal/app/machined/internal/server/v1alpha1: Dmesg; cmd/talosctl/cmd/talos/dmesg.go).
_TALOS = re.compile(
    r"(?:(?P<host>[A-Za-z0-9][\w.:-]{0,62}): )?"
    r"(?P<facility>kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local[0-7])"
    r": {1,8}(?P<level>emerg|alert|crit|err|warning|notice|info|debug): (?=\[\d{4}-\d\d-\d\dT)"
)
# RFC 5424, 6.2.1; those from 12 to 15 have no name there.
_FACILITY_NAMES = "kern user mail daemon auth syslog lpr news uucp cron authpriv ftp"
_FACILITIES = {name: number for number, name in enumerate(_FACILITY_NAMES.split())}
_FACILITIES |= {f"local{number}": 16 + number for number in range(8)}
# The time of day alone, or behind a date whose day and month could change places: when it was
# nobody can tell, and it is no part of the message.
_TIME_ALONE = re.compile(
    r"(?:\d{1,2}[/.]\d{1,2}[/.](?:19|20)\d\d,? )?"
    r"(?:\d\d:\d\d:\d\d(?:[.,]\d{1,9})?|\[\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\])\s{1,4}(?=[^\s:])"
)
# Go's log package (`LstdFlags`) parts a date by slashes, and names no machine behind it; nor does
# who writes a date in one piece, or the day first.
_BY_PROGRAM = re.compile(r"\d{4}/|\d{8}|\d{1,2}-[A-Z][a-z]{2}-")
_KMSG = re.compile(r"(\d{1,3}),\d+,(\d{1,19}),[-+c][^;\n]{0,80};")
# Before the stamp: `*`, a sequence number or two (IOS counts what it sends, and with `service
# sequence-numbers` what it says), `host:`, `host RP/0/RSP0/CPU0:` or `0/RP0/ADMIN0:` (Cisco's
# families), the `%` of Comware's console and log file.
_BARE_LEAD = re.compile(r":?\s*(?:\d+: ){0,2}(?:[*.]|%(?=[A-Z][a-z]{2} {1,2}\d))?")
_LEAD = re.compile(
    r":?\s*(?:\d+: ){0,2}(?::\s*)?(?:(?P<host>[A-Za-z0-9][\w.-]*)\s?:?\s+)?"
    r"(?:(?:(?:RP|LC)/[\w/]+|\d{1,3}/(?:RP|LC|FC|SC)?\d{1,2}/ADMIN\d):)?[*.]?"
)
# The name that a switch of NX-OS gives itself behind a relay's header, before its own stamp.
_OWN_NAME = re.compile(
    r"(?P<host>[A-Za-z0-9][\w.-]{0,62}): "
    r"(?=(?:19|20)\d\d [A-Z][a-z]{2} {1,2}\d{1,2} [\d:.]{8,15}(?: [A-Z]{2,5})?: %)"
)
_INNER = re.compile(
    r"\s*(?::\s*)?(?:\d+:\s*){0,2}"
    r"(?:(?:(?:RP|LC)/[\w/]+|\d{1,3}/(?:RP|LC|FC|SC)?\d{1,2}/ADMIN\d):)?[*.]?"
    r"(?=\d{4}[\s-]|[A-Z][a-z]{2}\s)"
)
# How long IOS has run, before a message (`service timestamps log uptime`, its default), behind the
# sequence number and the name.
_UPTIME = re.compile(
    r"(?:\d{1,10}: )?(?:(?P<host>[A-Za-z][\w.-]{0,62}): )?[*.]?"
    r"(?:\d{1,3}:\d\d:\d\d(?:\.\d{1,6})?|\d{1,3}[ywd]\d{1,2}[wdh]): (?=%[A-Z])"
)
_WORD_PRI = re.compile(r"<[a-z]+\d?\.([a-z]+)>\s+")
# Facility and level behind the host: BusyBox (sysklogd/syslogd.c, log_locally), as the controllers
# of servers and switches write them; with a colon, a relay's template of its own.
_FACILITY_LEVEL = re.compile(
    r"(?P<facility>kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local[0-7])"
    r"\.(?P<level>emerg|alert|crit|err|error|warn|warning|notice|info|debug):? {1,4}(?=\S)"
)
# Python's logging, as its documentation formats a line (howto/logging): who logs, the level.
_PYTHON_LEVEL = re.compile(r"- [\w.-]{1,80} - (?P<level>CRITICAL|ERROR|WARNING|INFO|DEBUG) - ")
# date(1), whose zone stands before the year, as scripts put it before their words.
_DATE = re.compile(r"[A-Z][a-z]{2} [^\n]{0,30} [A-Z]{3,5} (?:19|20)\d\d$")
# OpenZFS' `PANIC at zio.c:77:zio_done()` grades nothing (module/os/linux/spl/spl-err.c).
_SEVERITY_WORD = re.compile(
    r"(" + "|".join(sorted(_SEVERITIES, key=len, reverse=True)) + r")(?=\s)(?! at \S+\.c:\d)\s+"
)
_TOKEN = re.compile(r"[^\s\[\]<>%(){}\"'=,;]+(?=\s|$)")
# `ALML/4/VOL_FAIL:` is a mnemonic of Huawei's, `CHASSISD_SNMP_TRAP7:` a tag of Junos', and no
# program. In brackets: a child of systemd's before it is another program, a worker of udev's; of
# linuxptp's programs how long the machine runs (print.c).
_PROGRAM = re.compile(
    r"(?P<name>(?![A-Z]\w{1,39}/[0-7]/|[A-Z][A-Z0-9]{1,20}_[A-Z0-9_]{2,60}: )"
    r"[A-Za-z_/][\w./#()@-]{0,79}|\([\w.:@-]{1,40}\)(?=\[\d))"
    r"(?:\[(?:\d+(?:\.\d{3})?|[\w-]+)\])?:(?:\s|$)\s?"
)
# A daemon of Junos in the file of its traces, where the tag alone says who writes.
_TAG_OF_DAEMON = re.compile(r"(?P<daemon>[A-Z][A-Z0-9]{1,11}D)_[A-Z0-9_]{2,60}: ")
# Line cards of Junos, which name themselves without a colon.
_LINE_CARD = re.compile(r"(?P<name>(?:fpc|c?feb|tfeb|ssb|spmb)\d{0,2})(?: (?P=name))? (?=\S)")
# Junos' facility and severity before a message (`explicit-priority`), behind a program or the
# host; before a tag (`%DAEMON-4-RPD_...: `) behind a program, as NX-OS has
# `%DAEMON-3-SYSTEM_MSG: ` alone.
_EXPLICIT_PRIORITY = re.compile(r"(?:: )?%[A-Z]{2,12}-(?P<severity>[0-7]): {1,3}(?=\S)")
_EXPLICIT_TAG = re.compile(
    r"%(?:AUTH(?:ORIZATION)?|CHANGE|CONFLICT|DAEMON|EXTERNAL|FIREWALL|INTERACT|KERN|LOCAL\d|PFE|USER)"
    r"-(?P<severity>[0-7])-(?!SYSTEM_MSG)(?=[A-Z][A-Z0-9]{1,20}_[A-Z0-9_]{2,60}: )"
)
# The severity's word, where SONiC's template has it, is enough as well.
_NAMED = re.compile(
    r"\S+\s+(?:(?:kernel|[\w./#@-]+\[\d+\]|\([\w.:@-]{1,40}\)\[\d+\]):\s"
    r"|(?:EMERG|ALERT|CRIT|ERR|WARNING|NOTICE|INFO|DEBUG) [\w./#@-]{1,80}(?:\[\d+\])?: )"
)
# A driver before its PCI address, a repeat that names no host, OpenSM's microseconds and thread
# (libopensm/osm_log.c), or what Ceph puts before its words in a daemon's own file and in the
# cluster's (src/log/Log.cc, src/common/LogEntry.cc).
_NO_HOST = re.compile(
    r"\S+\s+(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\b|(?:last )?message (?:buffered"
    r" )?repeated \d|\d{1,6} \[[0-9a-f]{4,16}\] 0x[0-9a-f]{2} -> |[0-9a-f]{12,16} {1,3}-?\d{1,2} "
    r"|(?:mon|osd|mds|mgr|client)\.\S{1,60} \S{1,60} \d{1,20} : ",
    re.IGNORECASE,
)
_LAST_REPEATED = re.compile(r"last message (?:buffered )?repeated (\d{1,9}) times?", re.IGNORECASE)
_QUOTED_REPEAT = re.compile(
    r"message repeated (\d{1,9}) times?: \[ ?(.*?)\]?$", re.IGNORECASE | re.DOTALL
)
_SUFFIX_REPEAT = re.compile(
    r"(.*\S)\s+\(message repeated (\d{1,9}) times?(?: in [\d.]+ secs?)?\)$",
    re.IGNORECASE | re.DOTALL,
)
# What pdsh and clush put before each line of a node (pdsh(1), clush(1)): its name, which has a
# digit, none of the marks of a program's, and is none of the programs that end in one.
# Without a blank, where a program with its process follows, as people copy what grep(1) found.
_SHELL_HEAD = re.compile(
    r"(?!(?:python|perl|php|ruby|lua|tcl|gcc|clang|base|md|sha|bzip|su|fio)-?[\d.]+: |slurmd-)"
    r"(?P<host>(?=[A-Za-z.-]{0,60}\d)[A-Za-z][A-Za-z0-9.-]{1,62})"
    r"(?:: |:(?=[a-z][\w-]{1,40}\[\d{1,10}\]: ))(?P<line>.)"
)
# What stands before a line that was copied from more than one file (grep(1): the file and the
# number of the line), what Ceph's daemons put before each in a container (log_stderr_prefix, as
# cephadm and Rook set it), and the name of the container before Docker Compose's.
_COPIED_FROM = re.compile(
    r"(?=[\w.+@/-]{0,200}(?:messages|syslog|dmesg|\.log|\.gz|\.journal)\b)[\w.+@/-]{1,200}[:-]"
    r"(?:\d{1,9}[:-])?(?=[\[<\w])|\d{1,9}[:-](?=[\[<A-Z]|\d{4}-)|debug (?=\d{4}-\d\d-\d\dT)"
    r"|[a-z][\w.-]{1,60} {1,40}\| (?=\S)"
)
# What a container's runtime writes before each line of its files: stamp, stream, whether the line
# is whole (Kubernetes, staging/src/k8s.io/cri-client/pkg/logs/logs.go: parseCRILog).
_CONTAINER = re.compile(
    r"(?P<stamp>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}(?:Z|[+-]\d\d:\d\d))"
    r" std(?:out|err) [FP] "
)
# CoreOS' capnslog, which Rook's operator writes with (capnslog/formatters.go: PrettyFormatter,
# logmap.go): the place in the source when it debugs, the level and the package.
_CAPNSLOG = re.compile(
    r"(?:\[[\w.?-]{1,60}:\d{1,6}\] )?(?P<level>[CEWNIDT]) \| (?P<program>[a-z][\w./-]{1,60}): "
)
_CAPNSLOG_SEVERITIES = {"C": 2, "E": 3, "W": 4, "N": 5, "I": 6, "D": 7, "T": 7}
# What has a header of its own and no wall time at its beginning (those: `_LEAD`), or is the
# kernel's by its first words: dmesg's and journalctl's forms, a program with its process, a row of
# a controller's event log.
_HAS_HEADER = re.compile(
    r"\[\s*\d{1,10}\.\d{3,9}\]|\[[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d\]|kernel: "
    r"|[a-z]{3,8} {0,5}:(?:emerg|alert|crit|err|warn|notice|info|debug) {0,5}: "
    r"|[A-Za-z_][\w./#@-]{1,60}\[\d{1,10}\]: |(?:slurm(?:d|ctld|dbd|stepd)|munged): "
    r"| {0,4}[0-9a-f]{1,4}(?: \| |,)(?:\d\d/\d\d/| ?Pre-Init)"
    r"|NVRM: |EDAC [A-Z]|LustreError: |(?:mlx[45]_core|bnxt_en|amdgpu|pcieport|nvme) \S{4,12}[:.]"
    r"|nvidia-nvswitch\d|(?:mce: |\{\d{1,9}\})\[Hardware Error\]|EXT[34]-fs error|XFS \(\S{1,60}\)"
    r"|INFO: task |Out of memory: |Job for [\w.@-]{1,60} failed"
)
# With these the kernel begins messages (6.12: pr_fmt, dev_driver_string, netdev_name), as `dmesg
# --notime` and consoles print them, without a stamp or a program.
_OF_KERNEL = re.compile(
    r"INFO|BUG|JBD2|XFS|BTRFS|EXT[234]-fs|DMAR(?:-IR)?|AMD-Vi|IOMMU|iommu|ACPI|APEI|GHES|HEST|BERT"
    r"|ERST|mce|MCE|PCI|rcu|watchdog|NMI|SMP|smpboot|clocksource|tsc|workqueue|NFS(?:v4|D)?|nfsd?"
    r"|RPC|lockd|libceph|ceph|rbd|LNet|LNetError|md|raid\d+|device-mapper|scsi|ata\d+(?:\.\d+)?"
    r"|sd[a-z]{1,2}|dm-\d+|mpt[23]sas\w*|mpi3mr\w*|mpt(?:base|sas|scsih)|megasas|megaraid_sas|hpsa|lpfc|amdgpu|nouveau"
    r"|bond\d+|(?:eth|ib)\d+|ib[ps]\w+|en[ops]\w+|bnx2x?|i40e|iavf|ixgbe|ig[bc]|irdma|efa|ena"
    r"|tg3|e1000e?|r8169|ipmi_\w+|hfi1|qla2xxx|idpf|ionic|vfio[-_]pci"
)
# Which process of a parallel job wrote the line, as who began it puts it before each: Open MPI and
# PRRTE (iof, `--output tag`, tag-detailed, tag-fullname and rank), torchrun (torch/distributed/
# elastic/multiprocessing/tail_log.py: role and local rank), PyTorch's handler of exceptions
# (torch/distributed/distributed_c10d.py), Ray and vLLM (ray/_private/worker.py), in colour or not;
# srun with --label (slurm, src/common/write_labelled_message.c: the task's number) before what a
# step or NCCL says.
_JOB_LABELS = re.compile(
    r"(?:(?:\x1b\[[\d;]{0,12}m){0,2}(?:"
    r"\[(?:[\w.@-]{1,120},)?\d{1,9}\](?:\[[\w.-]{1,120}:\w{1,10}\])?<std(?:out|err|diag)>: ?"
    r"|\[[a-z][a-z_]{0,30}\d{1,6}\]: ?"
    r"| {0,7}\d{1,8}: (?=(?:slurmstepd|srun|pyxis|spank)\b|[\w.-]{1,64}:\d{1,10}:\d{1,10} \[\d)"
    r"|\([\w.:<>-]{1,100}(?: [a-z]{1,12}=[\w.:-]{1,45}){0,2} pid=\d{1,9}(?:, ip=[\da-f.:]{2,45})?\)"
    r"(?:\x1b\[[\d;]{0,12}m)? "
    r")){1,3}"
)
# What systemd and dracut write into the kernel's ring, while no journal is there and where it is
# passed on to (systemd, src/basic/log.c: LogTarget). Of their ends the kernel itself tells.
_OF_RING = re.compile(
    r"(?P<name>systemd(?:-[a-z]{2,20}){0,3}|dracut[\w-]{0,30})\[\d{1,10}\]: "
    r"(?!segfault |general protection|trap |bad frame)"
)
# A slurmd beside others on one machine adds its node's name (slurm, src/slurmd/slurmd/slurmd.c:
# MULTIPLE_SLURMD), and slurmstepd the name of its own where it speaks into a job's output
# (src/slurmd/slurmstepd/slurmstepd.c, src/common/log.c).
_OF_NODE = ("slurmd", "slurmstepd")
# What such a line's program counts as: not the kernel, which is meant where a line names none.
_JOB = "job"
# Levels before a message whose program wrote no name, as Slurm's daemons in the foreground.
_LEVELS = ("error", "fatal")
# With these a message of the kernel begins, whatever stands before it.
_MESSAGE_HEADS = ("NVRM", "AER", "SXid", "EDAC", "EEH", "Lustre", "LustreError")
# With this every line of smartd begins (smartmontools, smartd.cpp), as it mails and prints them.
_OF_SMARTD = "Device"
# Those that no program is named after, in files of a platform's own (`ERROR: it failed`).
_LEVELS_ALONE = ("ERROR", "FATAL", "CRITICAL")
# Daemons that are named like kernel modules.
_DAEMONS = ("nvidia-fabricmanager", "nvidia-imex", "nvidia-persistenced", "nvidia-powerd")


class LineRepeat(str, Enum):
    """Whether a line stands for itself, for earlier copies of the line it quotes, or for the line
    before it."""

    NONE = "none"
    QUOTED = "quoted"
    LAST = "last"


@dataclass(frozen=True)
class Header:
    """What stands around the message. `host` is as written; `occurred_at` is UTC, `observed_at` if
    nothing is said.

    `kernel_seconds` is printk's stamp as text, such as `390.306117`, or empty. `boot` is a boot id
    that the line carries, or empty. `repeats` is how many occurrences the line stands for; with
    `Repeat.LAST` the body is not the message. `severity` is syslog's 0 (emergency) to 7 (debug), or
    None; `facility` 0 (kernel) to 23, or None. `has_stamp`: the line said its wall time.
    """

    host: str | None
    occurred_at: datetime
    kernel_seconds: str
    boot: str
    repeats: int
    program: str
    body: str
    severity: int | None = None
    repeat: LineRepeat = LineRepeat.NONE
    has_stamp: bool = False
    facility: int | None = None


class _Stamp(NamedTuple):
    at: datetime
    end: int
    is_dmesg: bool  # brackets or a decimal comma: dmesg, which names no host


class _Lead(NamedTuple):
    """What stands before all else, up to `end`: when, the ring's own time as it is written, and
    the node's name of pdsh or clush."""

    host: str | None
    stamp: _Stamp | None
    kernel: str
    end: int


@dataclass(frozen=True)
class _Clock:
    """What a stamp without year or zone is read by."""

    observed_at: datetime
    zone: tzinfo
    year: int | None

    def resolve(self, fields: dict[str, str | None], month: int) -> datetime | None:
        """UTC time of the stamp's fields; None when they name no time (31 February)."""
        zone = _offset(fields.get("offset") or "", fields.get("zone") or "") or self.zone
        kept = (fields.get(key) for key in ("year", "year2", "year3", "year4"))
        written = next(filter(None, kept), None)
        years: tuple[int, ...]
        if written:
            years = (int(written),)
        elif self.year:
            years = (self.year,)
        else:
            here = self.observed_at.year
            years = (here, here - 1, here + 1)
        clock = [int(fields[unit] or 0) for unit in ("day", "h", "m", "s")]
        micros = int((fields["frac"] or "")[:6].ljust(6, "0"))
        times = [time for year in years for time in _readings(year, month, clock, micros, zone)]
        now = self.observed_at
        return min(times, key=lambda time: (time - now > _AHEAD, abs(time - now)), default=None)


def _readings(year: int, month: int, clock: list[int], micros: int, zone: tzinfo) -> list[datetime]:
    """The instants that a wall time can mean: two when clocks were set back over it, none when it
    is no date.

    In the hour that daylight saving skips, PEP 495 counts on with the offset before the change.
    """
    day, hour, minute, second = clock
    try:
        wall = datetime(year, month, day, hour, minute, min(second, 59), micros, tzinfo=zone)
        instants = {wall.astimezone(timezone.utc)}
        if wall.utcoffset() != wall.replace(fold=1).utcoffset() and _exists(wall):
            instants.add(wall.replace(fold=1).astimezone(timezone.utc))
    except (ValueError, OverflowError):
        return []
    return sorted(instants)


def _exists(wall: datetime) -> bool:
    return wall.astimezone(timezone.utc).astimezone(wall.tzinfo).replace(
        tzinfo=None
    ) == wall.replace(tzinfo=None)


def _offset(offset: str, name: str) -> tzinfo | None:
    offset = offset.strip().upper()
    if offset in ("Z", ""):
        hours = _ZONE_HOURS.get(name or offset)
        return None if hours is None else timezone(timedelta(hours=hours))
    minutes = int(offset[1:3]) * 60 + int(offset[-2:])
    if minutes >= 1440:
        return None
    return timezone(timedelta(minutes=-minutes if offset[0] == "-" else minutes))


def parse_stamp(text: str, *, observed_at: datetime, zone: tzinfo) -> datetime | None:
    """The UTC time of a stamp alone, such as `Jan 12 03:04:05`; None when it is none. As
    `parse_header` reads it."""
    stamp = _stamp(text, 0, _Clock(observed_at, zone, None))
    return None if stamp is None else stamp.at


def _stamp(text: str, start: int, clock: _Clock) -> _Stamp | None:
    """The wall-clock stamp at `start`, brackets of `dmesg -T` included."""
    bracket = text.startswith("[", start)
    begin = start + 1 if bracket else start
    usual = _BSD.match(text, begin) or _ISO.match(text, begin)
    found = usual or _BASIC.match(text, begin) or _DAY_FIRST.match(text, begin)
    if found is None:
        return None if bracket else _unix_stamp(text, begin)
    fields = found.groupdict()
    month = _MONTHS.get((fields.get("name") or "").lower()) or int(fields.get("month") or 0)
    at = clock.resolve(fields, month)
    end = found.end()
    if bracket:
        if not text.startswith("]", end):
            return None
        end += 1
    if at is None:
        return None
    is_dmesg = bracket or (fields["point"] == "," and "offset" in fields)
    return _Stamp(at, end, is_dmesg)


def _unix_stamp(text: str, start: int) -> _Stamp | None:
    found = _UNIX.match(text, start)
    if found is None:
        return None
    whole = datetime.fromtimestamp(int(found["at"]), timezone.utc)
    return _Stamp(whole.replace(microsecond=int(found["frac"])), found.end(), False)


def parse_header(
    line: bytes, *, observed_at: datetime, zone: tzinfo, year: int | None = None
) -> Header:
    """The header of one line without its framing. Never raises.

    `observed_at` is aware; `zone` is that of stamps which name none; `year` that of stamps which
    name none (None: the year that puts the stamp nearest to `observed_at`).
    """
    plain = journal_json.format_plain(line)
    text = plain[:MAX_TEXT].decode("utf-8", "replace").strip("\0\r\n ").removeprefix(_BOM)
    clock = _Clock(observed_at, zone, year)
    pri = _PRI.match(text)
    if pri is not None and int(pri[1]) < 192:
        return _from_syslog(text, pri, clock)
    text = _remove_file_name(text, clock)
    container = _CONTAINER.match(text)
    if container is not None:
        return _from_container(text, container, clock)
    talos = _TALOS.match(text)
    if talos is not None:
        return _from_talos(text, talos, clock)
    # What is indented goes on with a message, and names no node.
    head = None if plain.startswith(b" ") else _SHELL_HEAD.match(text)
    if head is None or not _has_header(text, head.start("line")):
        return _from_console(text, clock)
    header = _from_console(text[head.start("line") :], clock)
    return header if header.host else replace(header, host=head["host"])


def _from_container(text: str, found: re.Match[str], clock: _Clock) -> Header:
    """What the container's program wrote, by the runtime's time where it wrote none."""
    header = _from_console(text[found.end() :], clock)
    stamp = _stamp(found["stamp"], 0, clock)
    if header.has_stamp or stamp is None:
        return header
    return replace(header, occurred_at=stamp.at, has_stamp=True)


def _remove_file_name(text: str, clock: _Clock) -> str:
    """The line without the file that it was copied from."""
    found = _COPIED_FROM.match(text)
    if found is None:
        return text
    line = text[found.end() :]
    is_line = _leading_stamp(line, clock)[1] is not None or _has_header(line, 0)
    return line if is_line else text


def _has_header(text: str, start: int) -> bool:
    """Whether what begins there is a line by itself."""
    return _HAS_HEADER.match(text, start) is not None


def _from_syslog(text: str, pri: re.Match[str], clock: _Clock) -> Header:
    """A line behind its priority, which has said whose facility it is."""
    facility, severity = divmod(int(pri[1]), 8)
    text = text[pri.end() :]
    structured = _RFC5424.match(text)
    if structured is not None:
        header = _from_5424(text, structured, severity, clock)
    else:
        header = _from_bsd(text, severity, clock, is_kernel=facility == _FACILITIES["kern"])
    return replace(header, facility=facility)


def _from_5424(text: str, found: re.Match[str], severity: int, clock: _Clock) -> Header:
    stamp = _stamp(found["stamp"], 0, clock)
    start = end = found.end()
    if text.startswith("-", end):
        end += 1
    while (element := _ELEMENT.match(text, end)) is not None:
        end = element.end()
    boot = _BOOT.search(text, start, end)
    host = None if found["host"] == "-" else found["host"]
    program = "" if found["program"] == "-" else found["program"]
    body = text[end:].removeprefix(" ").removeprefix(_BOM)
    occurred_at = stamp.at if stamp else None
    boot_id = boot[1] if boot else ""
    return _finish(host, occurred_at, program, body, severity, clock, boot_id)


def _from_console(text: str, clock: _Clock) -> Header:
    """A line without a priority in angle brackets."""
    row = _SEL_ROW.match(text)
    if row is not None:
        return _from_sel(text, row, clock)
    if _SEL_EVENT.match(text) is not None:
        return _finish(None, None, "", f"0 | Pre-Init | 00000000 | {text}", None, clock)
    listed = _LOG_UTIL.match(text) or _RAS_ROW.match(text)
    if listed is not None:
        return _from_list(text, listed, clock)
    decoded = _DECODED.match(text)
    if decoded is None:
        return _from_bsd(text, None, clock)
    header = _from_bsd(text[decoded.end() :], _SEVERITIES[decoded["level"].upper()], clock)
    return replace(header, facility=_FACILITIES[decoded["facility"]])


def _from_talos(text: str, found: re.Match[str], clock: _Clock) -> Header:
    """What another program wrote to the kernel's ring (`user:`) stays that program's."""
    severity = _SEVERITIES[found["level"].upper()]
    header = _from_bsd(text[found.end() :], severity, clock)
    facility = _FACILITIES[found["facility"]]
    return replace(header, host=found["host"] or header.host, facility=facility)


def _from_sel(text: str, row: re.Match[str], clock: _Clock) -> Header:
    """A row of a controller's event log. The message is all of it, as it stands without `-c`."""
    rest = text[row.end() :]
    if row["comma"]:
        rest = rest.replace(",", " | ")
    if row["since"]:
        body = f"{row['id']} | Pre-Init | {row['since'][-8:]} | {rest}"
        return _finish(None, None, "", body, None, clock)
    fields = row.groupdict()
    fields["year"] = f"20{row['year'][-2:]}"
    occurred_at = clock.resolve(fields, int(row["month"]))
    date = f"{row['month']}/{row['day']}/{fields['year']}"
    body = f"{row['id']} | {date} | {row['h']}:{row['m']}:{row['s']} | {rest}"
    return _finish(None, occurred_at, "", body, None, clock)


def _from_list(text: str, row: re.Match[str], clock: _Clock) -> Header:
    """A row of what a program keeps, as its own tool lists it."""
    stamp = _stamp(row["stamp"], 0, clock)
    program = row.groupdict().get("program") or "rasdaemon"
    return _finish(None, stamp.at if stamp else None, program, text[row.end() :], None, clock)


def _from_bsd(text: str, severity: int | None, clock: _Clock, *, is_kernel: bool = False) -> Header:
    """A line whose stamp, machine and program stand before its words, each or none of them.
    `is_kernel`: its priority says so, and no tag stands before what its ring holds."""
    kmsg = _KMSG.match(text)
    if kmsg is not None:
        return _from_kmsg(text, kmsg, clock)
    # What has a priority went through syslog, and keeps the forms of files and terminals as text.
    is_of_file = severity is None
    lead = _take_lead(text, clock)
    stamp, rest = lead.stamp, text[lead.end :].lstrip()
    of_program = _from_logging(lead.host, stamp, rest, clock) if is_of_file else None
    if of_program is not None:
        return of_program
    is_bare = is_of_file and stamp is None
    if stamp is not None and stamp.is_dmesg:
        rest = _CALLER.sub("", rest)
    host, rest = _take_machine(text, lead, rest, is_of_file=is_of_file)
    facility = None
    if stamp is not None and is_of_file:
        facility, severity, rest = _take_facility(rest)
    if stamp is not None:
        host, stamp, rest = _take_own_header(host, stamp, rest, clock, is_of_file=is_of_file)
    host, rest, word_severity = _take_priority(host, rest)
    severity = severity if word_severity is None else word_severity
    # What the kernel's ring holds is the kernel's text, `systemd[1]: ...` too: one line gets one
    # key by every path.
    is_ring = bool(lead.kernel) or (stamp is not None and stamp.is_dmesg)
    is_raw = is_kernel and stamp is None and host is None and not rest.startswith("kernel:")
    if is_raw or (is_ring and (host is None or lead.host is not None)):
        program, body = "", rest
    else:
        program, body = _take_program(rest, is_bare=is_bare and host is None)
    occurred_at = stamp.at if stamp else None
    header = _finish(host, occurred_at, program, lead.kernel + body, severity, clock)
    return header if facility is None else replace(header, facility=facility)


def _from_kmsg(text: str, found: re.Match[str], clock: _Clock) -> Header:
    """A record of /dev/kmsg, and of netconsole in its longer form."""
    micros = int(found[2])
    body = f"[{micros // 1_000_000}.{micros % 1_000_000:06d}] {text[found.end() :]}"
    facility, severity = divmod(int(found[1]), 8)
    header = _finish(None, None, "kernel", body, severity, clock)
    return replace(header, facility=facility)


def _take_lead(text: str, clock: _Clock) -> _Lead:
    host, stamp = _leading_stamp(text, clock)
    if stamp is not None:
        return _Lead(host, stamp, "", stamp.end)
    printk = _KERNEL.match(text)
    if printk is not None:
        return _Lead(None, None, printk[0], printk.end())
    minute = _dmesg_minute(text, clock)
    if minute is not None:
        return _Lead(None, minute, "", minute.end)
    time_alone = _TIME_ALONE.match(text)
    return _Lead(None, None, "", time_alone.end() if time_alone else 0)


def _take_machine(text: str, lead: _Lead, rest: str, *, is_of_file: bool) -> tuple[str | None, str]:
    """The machine behind the stamp, or the one that pdsh or clush has named."""
    stamp = lead.stamp
    if stamp is not None and rest.startswith(":"):
        return lead.host, rest[1:].lstrip()
    if lead.host is not None:
        return _take_second_host(lead.host, rest) if is_of_file else (lead.host, rest)
    is_of_script = is_of_file and _DATE.match(text[: lead.end]) is not None
    is_of_program = is_of_script or _BY_PROGRAM.match(text) is not None
    is_syslog = stamp is not None and not stamp.is_dmesg and not is_of_program
    return _take_host(rest, is_certain=is_syslog)


def _take_facility(rest: str) -> tuple[int | None, int | None, str]:
    """Facility and severity by name, and what is behind them."""
    found = _FACILITY_LEVEL.match(rest)
    if found is None:
        return None, None, rest
    severity = _SEVERITIES[found["level"].upper()]
    return _FACILITIES[found["facility"]], severity, rest[found.end() :]


def _take_own_header(
    host: str | None, stamp: _Stamp, rest: str, clock: _Clock, *, is_of_file: bool
) -> tuple[str | None, _Stamp, str]:
    """The name and the stamp that a device wrote itself, behind those of a relay."""
    own_name = _OWN_NAME.match(rest)
    if own_name is not None:
        # Of a line with a priority, the machine that sent it was told by its own header.
        host = own_name["host"] if is_of_file or host is None else host
        rest = rest[own_name.end() :]
    inner = _inner_stamp(rest, clock)
    if inner is None:
        return host, stamp, rest
    return host, inner, rest[inner.end :].lstrip(" :")


def _from_logging(
    host: str | None, stamp: _Stamp | None, rest: str, clock: _Clock
) -> Header | None:
    """What stands behind a stamp in the form of a library of programs: CoreOS' capnslog or Python's
    logging."""
    if stamp is None:
        return None
    capnslog = _CAPNSLOG.match(rest)
    if capnslog is not None:
        level, body = _CAPNSLOG_SEVERITIES[capnslog["level"]], rest[capnslog.end() :]
        return _finish(host, stamp.at, capnslog["program"], body, level, clock)
    python = _PYTHON_LEVEL.match(rest)
    if python is not None:
        severity = _SEVERITIES[python["level"]]
        return _finish(host, stamp.at, _JOB, rest[python.end() :], severity, clock)
    return None


def _leading_stamp(text: str, clock: _Clock) -> tuple[str | None, _Stamp | None]:
    stamp = _stamp(text, 0, clock)
    if stamp is not None:
        return None, stamp
    for pattern in (_BARE_LEAD, _LEAD):
        lead = pattern.match(text)
        if (
            lead is not None
            and lead.end()
            and (stamp := _stamp(text, lead.end(), clock)) is not None
        ):
            return lead.groupdict().get("host"), stamp
    return None, None


def _dmesg_minute(text: str, clock: _Clock) -> _Stamp | None:
    """The stamp `[Feb28 16:29]`, which has no seconds."""
    found = _DMESG_MINUTE.match(text)
    if found is None:
        return None
    month = found[1][:3]
    stamp = _stamp(f"{month} {found[1][3:]}:00", 0, clock)
    return None if stamp is None else _Stamp(stamp.at, found.end(), True)


def _inner_stamp(rest: str, clock: _Clock) -> _Stamp | None:
    """The device's own stamp behind a relay's: `<189>May  3 13:55:35 sw1 2023 May  3 13:55:35.928
    AEST: %...`."""
    lead = _INNER.match(rest)
    return None if lead is None else _stamp(rest, lead.end(), clock)


def _take_host(rest: str, *, is_certain: bool) -> tuple[str | None, str]:
    """The host before the program. Where none is due (dmesg, no stamp), only one that stands before
    `kernel:`."""
    rest = _WORD_PRI.sub("", rest, count=1) if rest.startswith("<") else rest
    token = _TOKEN.match(rest)
    if token is None or token[0].endswith(":") or token[0] in _SEVERITIES or _NO_HOST.match(rest):
        return None, rest
    if not is_certain and not _NAMED.match(rest):
        return None, rest
    host = token[0].rpartition("@")[2].partition("/")[0]
    return host or None, rest[token.end() :].lstrip()


def _take_second_host(host: str, rest: str) -> tuple[str, str]:
    """A line of syslog behind the node's name of pdsh or clush: who wrote it stands in the line."""
    token = _TOKEN.match(rest)
    is_same = token is not None and short_host(token[0]) == short_host(host)
    if is_same or _NAMED.match(rest):
        own, after = _take_host(rest, is_certain=True)
        return own or host, after
    return host, rest


def _take_priority(host: str | None, rest: str) -> tuple[str | None, str, int | None]:
    """SONiC's `<local2.err> ERR`, on either side of the host."""
    severity = None
    marked = _WORD_PRI.match(rest)
    if marked is not None:
        severity, rest = _SEVERITIES.get(marked[1].upper()), rest[marked.end() :]
    word = _SEVERITY_WORD.match(rest)
    if word is not None:
        severity, rest = _SEVERITIES[word[1]], rest[word.end() :]
    return host, rest, severity


def _take_program(rest: str, *, is_bare: bool) -> tuple[str, str]:
    """`kernel: text` and `swss#orchagent[42]: text`. NVRM and driver names are part of the
    message. `is_bare`: nothing stands before it."""
    if rest.startswith("kernel:"):
        return "kernel", rest[len("kernel:") :].removeprefix(" ")
    tag = _TAG_OF_DAEMON.match(rest)
    if tag is not None:
        return tag["daemon"].lower(), rest
    found = _PROGRAM.match(rest) or _LINE_CARD.match(rest)
    if found is None or found["name"] in _MESSAGE_HEADS:
        return "", rest
    is_without_pid = found["name"] != "kernel" and "[" not in found[0]
    if is_without_pid and (
        _is_driver(found["name"])
        or found["name"] in _LEVELS_ALONE
        or (is_bare and _is_no_program(found["name"]))
    ):
        return "", rest
    daemon, dash, _node = found["name"].partition("-")
    name = daemon if dash and daemon in _OF_NODE else found["name"]
    return name, rest[found.end() :]


def _take_explicit_priority(
    program: str, body: str, severity: int | None
) -> tuple[str, str, int | None]:
    """Junos' `%DAEMON-4: ` or `%DAEMON-4-`, and the line card that may name itself behind
    `%PFE-3: `."""
    found = _EXPLICIT_PRIORITY.match(body)
    if found is None and program:
        found = _EXPLICIT_TAG.match(body)
    if found is None:
        return program, body, severity
    body = body[found.end() :]
    card = None if program else _LINE_CARD.match(body)
    if card is not None:
        program, body = card["name"], body[card.end() :]
    return program, body, int(found["severity"]) if severity is None else severity


def _is_no_program(name: str) -> bool:
    """A name that begins a message where nothing stands before it."""
    return name in _LEVELS or name == _OF_SMARTD or _OF_KERNEL.fullmatch(name) is not None


def _is_driver(name: str) -> bool:
    """A kernel module whose name stands before a message of dmesg, and no daemon of that name."""
    if name.startswith(_DAEMONS):
        return False
    return name.startswith(("nvidia", "mlx", "nvme", "pcie", "bnxt", "ib_", "md/"))


def _finish(
    host: str | None,
    at: datetime | None,
    program: str,
    body: str,
    severity: int | None,
    clock: _Clock,
    boot: str = "",
) -> Header:
    # rsyslog keeps the blank with which it took the message from behind its tag.
    body, repeats, repeat = _repeats(body.lstrip(" "))
    program, body, severity = _take_explicit_priority(program, body, severity)
    program, body = _take_kernel(program, body)
    printk = _KERNEL.match(body)
    seconds = (printk[1] or "") if printk is not None else ""
    if printk is not None:
        program, body = _take_kernel(program, body[printk.end() :].lstrip(" "))
    of_ring = _OF_RING.match(body) if program in ("", "kernel") else None
    if of_ring is not None:
        program, body = of_ring["name"], body[of_ring.end() :]
    if repeat is LineRepeat.NONE:
        body, repeats, repeat = _repeats(body)
    uptime = _UPTIME.match(body)
    if uptime is not None:
        host, body = host or uptime["host"], body[uptime.end() :]
    labels = _JOB_LABELS.match(body) if program != "kernel" and not seconds else None
    if labels is not None:
        program, body = program or _JOB, body[labels.end() :]
    occurred_at, has_stamp = at or clock.observed_at, at is not None
    return Header(
        host=host,
        occurred_at=occurred_at,
        kernel_seconds=seconds,
        boot=boot,
        repeats=repeats,
        program=program,
        body=body.strip(),
        severity=severity,
        repeat=repeat,
        has_stamp=has_stamp,
    )


def _take_kernel(program: str, body: str) -> tuple[str, str]:
    """The kernel's name, which stands on either side of its stamp."""
    if program or not body.startswith("kernel: "):
        return program, body
    return "kernel", body[8:]


def _repeats(body: str) -> tuple[str, int, LineRepeat]:
    last = _LAST_REPEATED.match(body)
    if last is not None:
        return body, int(last[1]), LineRepeat.LAST
    quoted = _QUOTED_REPEAT.match(body)
    if quoted is not None:
        return quoted[2], int(quoted[1]), LineRepeat.QUOTED
    suffix = _SUFFIX_REPEAT.match(body) if body.endswith(")") else None
    if suffix is not None:
        return suffix[1], int(suffix[2]), LineRepeat.QUOTED
    return body, 1, LineRepeat.NONE


def source_key(host: str, header: Header) -> str:
    """`host|boot|kernel timestamp|text`: the same for one line that came by two paths; empty when
    nothing tells.

    Only the kernel's own stamp tells two prints of one text apart, so a line without it has no key:
    two identical lines in one second are two occurrences. A line that stands for repeats has none
    either: the stamp that it quotes is that of the occurrence already counted.
    """
    if not header.kernel_seconds or header.repeat is not LineRepeat.NONE:
        return ""
    text = printable(header.body[:_KEY_TEXT])
    return f"{short_host(host)}|{header.boot}|{header.kernel_seconds}|{text}"
