"""By which words a line counts as one that should have been read: programs that matter, parts of a
machine, failures. Python 3.9.

The words of failure are those that stand in messages of level error and not in those of level info
of the same source: FRRouting, Slurm, SONiC (swss, sairedis, linkmgrd, platform daemons), NVIDIA's
open kernel modules, Lustre, Intel's ice, Amazon's drivers, corosync, Pacemaker, UCX, NCCL,
multipath-tools.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate

# Programs that serve hardware, fabric, storage or Slurm: their failures are worth a person's look,
# whatever the words. By the names with which their makers ship them.
PROGRAMS = (
    # NVIDIA's driver packages, DCGM, NVLink's and InfiniBand's managers.
    *("nv-*", "nvidia-*", "nvlsm", "fabricmanager", "dcgm*", "opensm", "ibacm", "srp_daemon"),
    *("openibd", "mlnx*", "mst", "rshim", "ibsim", "infiniband-diags", "rdma-ndd", "iwpmd"),
    # What jobs print and a site forwards: NCCL (src/debug.cc), UCX (src/ucs/debug/log.c).
    *("nccl", "ucx"),
    # The tools of InfiniBand's management (infiniband-diags, libibmad).
    *("ibwarn", "ibpanic", "iberror"),
    # Slurm and its authentication.
    *("slurm*", "sackd", "munged", "munge", "unmunge", "nhc"),
    # Slurm's commands, as jobs and scripts print them (their errors alone, see SELF_GRADING).
    *("srun", "sbatch", "salloc", "scontrol", "sacct", "sacctmgr", "squeue", "sinfo"),
    # Containers of jobs, and who looks up their users.
    *("enroot*", "apptainer*", "singularity*", "pyxis*", "dockerd", "docker", "containerd*"),
    *("podman", "sssd*", "nslcd", "ypbind", "nscd", "gssproxy"),
    # Pairs of servers that take over from each other.
    *("corosync*", "pacemaker*", "pcmk*", "crmd", "stonith*", "fenced", "dlm_controld", "attrd"),
    *("qdiskd", "rgmanager", "clurgmgrd", "cman", "gfs_controld"),
    *("lrmd", "cib", "pengine", "keepalived", "drbd*", "sbd"),
    # Storage: device-mapper, iSCSI, MD, SMART, ZFS, NFS, Spectrum Scale, BeeGFS, Ceph, Gluster.
    *("multipathd", "iscsid", "iscsiadm", "iscsistart", "mdadm", "smartd", "dmeventd", "zed"),
    *(
        "rpc.*",
        "rpcbind",
        "mount*",
        "mmfs*",
        "mmsysmon*",
        "mmremote",
        "beegfs-*",
        "lnet*",
        "lustre*",
    ),
    *("weka*",),
    *(
        "ceph",
        "ceph-*",
        "gluster*",
        "nfs*",
        "ganesha*",
        "automount",
        "blkmapd",
        "lvm*",
        "nvme*",
        "zpool*",
    ),
    # A machine's own health: BMC, machine checks, sensors, clocks, vendors' agents.
    *(
        "ipmievd",
        "ipmiseld",
        "ipmi*",
        "bmc*",
        "openipmi*",
        "mcelog",
        "rasdaemon",
        "thermald",
        "chronyd",
    ),
    *("ntpd", "ptp4l", "phc2sys", "edac*", "sel", "srvadmin*", "mr_monitor", "hpasm*"),
    # Rook's operator, which runs Ceph in Kubernetes (pkg/operator/ceph).
    *("op-*", "cephclient"),
    # HPE's agents for ProLiant; object storage.
    # AWS' and AMD's daemons for accelerators.
    *("nrtd", "neuron-*", "gpuagent", "amd-*-exporter"),
    *("hp-ams", "hp-health", "hpe-*", "amsd", "cma*", "minio"),
    *("irqbalance", "numad", "kdump*", "lm-sensors", "sensord", "systemd-modules-load"),
    # SONiC's containers and their programs (sonic-buildimage, dockers/), FRRouting.
    *("orchagent", "syncd", "xcvrd", "thermalctld", "psud", "pcied", "ledd", "chassisd"),
    *(
        "[!r]*syncd",
        "*mgrd",
        "*mgrdyn",
        "*teamd",
        "teamd*",
        "bgpd",
        "zebra",
        "bfdd",
        "staticd",
        "lldpd",
    ),
    *(
        "supervisord",
        "fpmsyncd",
        "healthd",
        "system-health",
        "pmon",
        "ycabled",
        "stormond",
        "sensormond",
        "bgpcfgd",
    ),
    *("ospfd", "ospf6d", "isisd", "pimd", "ldpd", "watchfrr", "frrinit*", "mgmtd", "pathd"),
    # As FRRouting names its daemons in its own file (lib/zlog.c).
    *("bgp", "ospf", "ospf6", "isis", "pim", "pim6", "bfd", "static"),
    *("linkmgrd", "hostcfgd", "caclmgrd", "procdockerstatsd", "monit", "swss*", "sonic-*"),
    *("featured", "sysmonitor*", "bmcctld", "dhcrelay", "dhcpmon", "tunnelmgrd", "fdbsyncd"),
    # Cumulus Linux, Junos, EOS: the processes that drive ports, power and routes.
    *("switchd", "smond", "ledmgrd", "pwmd", "clagd", "portwd", "rpd", "alarmd", "craftd", "dcd"),
    *("l2ald", "l2cpd", "lacpd", "pfed", "fpc*", "tfeb*", "ebra", "phyethtool", "thermostat"),
    *("mgd", "iccpd", "powermanager", "fru", "strata*", "sand*", "xcvragent", "procmgr*", "rib"),
    *("launcher", "superserver", "lag", "stp*", "mlag*", "bfd", "pmd", "sysdb", "jlaunchd"),
    *("dcpfe", "pfe[mx]", "chassism", "vccpd", "sfid", "evo-*", "resiliencyd", "picd", "spmb*"),
    # HPE Slingshot's retry handler; Brocade's RASlog; NVIDIA's UFM and the health monitor of NVOS.
    *("cxi_rh", "raslogd", "ufm*", "ibdiagnet", "system_healthd"),
    # Controllers of machines and arrays, which send their events to syslog.
    *("#ilo*", "xcc*", "idrac*", "purity.*", "sfa*", "emf*", "phosphor-*", "*psu-monitor"),
    *("ipmimain", "pldmd", "hw-management*", "hw_management*"),
)
# Programs in whose lines a part of the machine must be named as well: they speak of everything.
GENERAL_PROGRAMS = (
    *("kernel", "systemd", "systemd-networkd", "systemd-udevd", "networkmanager", "ifup*"),
    *("udevd*", "network*", "dracut*", "dhclient*", "wickedd*", "job"),
    # logger(1) without a name of its own, as vendors' scripts call it.
    *("root", "logger"),
)
# Drivers and subsystems of a server's and a switch's kernel begin their messages with their names:
# MAINTAINERS of Linux 6.x, for PCI, network, RDMA, SCSI, block, file systems, RAS, power.
_DRIVERS = (
    r"nvrm|nvidia\w*|nvidia-\w+|nv_peer_mem|gdrdrv|knem|xpmem|mlx\w*|bnxt\w*|irdma|ice|i40e|iavf"
    r"|ixgbe\w*|igb|igc|tg3|cxgb\w*|e1000e?|bnx2\w*|be2net|qed\w?|ionic|pds_core|ena|efa|hfi1|qib"
    r"|rxe|siw|gve|mana|fm10k|nfp|sfc|atlantic|r8169|usnic|enic|fnic|snic|opa_vnic"
    r"|mpt[23]sas\w*|mpi3mr\w*|mptsas|mptbase|megaraid\w*|megasas|aacraid|smartpqi|hpsa|hpwdt"
    r"|lpfc|qla\w+|bfa|ahci|libata|libsas|ses|iscsi|libiscsi|rport|device-mapper|dm-\w+|md"
    r"|raid\d*|bcache|drbd\d*|rbd\d*|loop\d*|jbd2|gfs2|ocfs2|dlm|cifs|nfsd?|lockd|rpc|sunrpc|svc"
    r"|rpcrdma|libceph|zfs|spl|vdo|edac|ghes|cper|bert|hest|erst|mce|amd-vi|dmar|iommu|acpi|aer"
    r"|dpc|pciehp|pcieport|vfio\w*|switchtec|ntb|i2c|at24|pmbus|hwmon|ipmi\w*|kcs|microcode"
    r"|clocksource|hrtimer|rcu|nmi|watchdog|bond\w*|team|bridge|vxlan|openvswitch|8021q|phylink"
    r"|mlxsw\w*|mlxreg\w*|optoe|thermal|cpufreq|intel_\w+|amd_\w+|kfd|amdgpu|habanalabs"
)
HARDWARE = (
    r"gpu|nvlink|nvswitch|pcie?|roce|rdma|infiniband|hca|nic|link|port|lane|phy|serdes"
    r"|transceivers?|modules?|optics?|[qo]?sfp\w*|cable|laser|fec|fans?|fan ?tray\w*|psus?|power"
    r"|voltage|temperature"
    r"|thermal|sensors?|memory|dimm\w*|ecc|machine check|cpus?|processor|cache|dram|hbm|firmware"
    r"|fw|bios|bmc|nvme\w*|disks?|drives?|scsi|ata\w*|md\d+|sd[a-z]{1,2}|block|eeprom|nvram|flash|dma\w*"
    r"|interrupts?|irqs?|tsc|lustre\w*|lnet\w*|ldiskfs|xfs|ext4(?:-fs)?|btrfs|file ?system"
    r"|i/o|switch|asic|pfc|bgp|bfd|lacp|hardware|chassis|netdev|eth\w*|en[spo]\w+|ib\w*"
    r"|connection\d+|session\d+|multipath|ceph|beegfs|weka\w*|gpfs|mmfs\w*|numa|hugepages?|slots?"
    r"|devices?|controller|adapter|board|queue|mailbox|doorbell|leds?|pmic|fru|media|superblock"
    r"|uvm|nvml|xgmi|psm2?|u?mad|qp|verbs|host ?engine|fabric ?manager|munged?|eeprom\w*"
    r"|s\.?m\.?a\.?r\.?t\.?|self-test|sqid|phb\w*|power ?supply|pwr|" + _DRIVERS
)
# The kernel's form for a message of a device (dev_printk): the driver and the device's address on
# its bus, a SCSI address, or qla2xxx's own form of it.
DEVICE = (
    r"[\w-]{2,24} \[?(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]\b"
    r"|(?:sd|sr|st|ses|scsi|scsi target|scsi host)\s?\d+(?::\d+){0,3}: "
)
FAILURE = (
    r"err|errors?|fail\w*|faults?|faulty|fatal|timeouts?|time[- ]?out|timed-?\s?out|lost|loss|dead"
    r"|down|unreachable|hung|hangs?|stuck|stall\w*|unresponsive|not respon\w+|no response"
    r"|corrupt\w*|critical|degraded|missing|abort\w*|refus\w+|unable|can ?not|could not|couldn't"
    r"|can't|invalid|mismatch\w*|overheat\w*|over-?(?:temp|heat|current|volt|run|flow)\w*|exceed\w*"
    r"|panic|under-?(?:run|flow|volt)\w*|offline|uncorrect\w*|unrecover\w*|poison\w*|parity|bad"
    r"|broken|not ready|throttl\w*|alarms?|threshold|unexpected\w*|crash\w*|violat\w+|flap\w*"
    r"|unstable|lockup|deadlock\w*|not supported|unhealthy|starv\w+|giv(?:es?|ing) up|gave up"
    r"|evict\w*|expell\w*|differs|misconfigur\w*|not enabled|unavailable|unsuccessful\w*"
    r"|incompatib\w*|insufficient|not enough|inconsisten\w+|illegal|denied|rejected|disconnected"
    r"|unsupported|exhausted|incorrect\w*|wrong|conflicts?|inaccessible|unusable|terminated|leak\w*"
    r"|split-?brain|out of (?:memory|resources|range|sync|space|order)"
    r"|no (?:space|memory|route|such|carrier|quorum)"
    r"|(?:not|never) (?:found|available|present|connected|recovered|complete\w*|synchroni[sz]ed)"
    r"|resetting|misbehav\w+|malfunction\w*|dropp(?:ed|ing)|frozen|freeze|fence|hogging"
    r"|never (?:reported|answered|came|became|started)|disallowed|not (?:running|responding)"
)
# What a device or a kernel does not have. Drivers say it at level info, too (Intel's ixgbe, i40e,
# ice, Amazon's ena): alone it is no failure.
LACKING = r"not supported|unsupported|not available|unavailable"
# Said by a program that has nothing to do but its hardware or its service, and seldom by one for
# which all is well.
COMPLAINT = (
    r"unknown|unrecogni[sz]ed|unhandled|undefined|must|malformed|incomplete|too \w+|exceptions?"
    r"|(?:not|never) (?:allowed|valid|set|permitted|implemented|running|initiali[sz]ed|match\w*"
    r"|configured|registered|loaded|exist|able|working|functional|usable|received|known|applied)"
    r"|no (?:\w+ )?(?:found|available|exists?|response|answer|reply)|null|problem|rejecting"
    r"|disconnect\w*|duplicate|discard\w*|retr(?:y|ies|ying)|expired|stale|suspended|killed|deni\w+"
    r"|exit(?:ed)? (?:with|status|code|unexpectedly)|inactive|unplugged|removed|paused|delayed|slow"
    r"|should (?:be|not|never|have)|requires|(?:does|did|has|have|is|are|was|were|would)n't"
    r"|busy|already (?:mounted|in use|running|active|exists?|registered)"
)
# What a network system's message of severity 0 to 3 says in good order: vendors print some that
# only announce a state (Cisco's NX-OS: CONF_CONTROL, POAP_INFO, VDC_ONLINE, COPP_POLICY).
ORDER = (
    r"ok|ready|online|up|present|inserted|started|inited|info|success\w*|complete|completed|enabled"
    r"|activated|stable|protected|clear|cleared|established|resume[ds]?|recovered|passed"
)
# How programs mark an error before its words.
ERROR_MARKS = (
    # Slurm (log.c), FRRouting and most daemons.
    r"(?i:(?:\[[^\]]{0,60}\]\s*)?(?:error|fatal|critical|err|crit|panic|alert|emerg)\b\s*:)",
    # nv-fabricmanager, nv-hostengine: the level in brackets or after a stamp.
    r"(?i:(?:\[[^\]]{0,60}\]\s*){0,3}\[?(?:ERROR|FATAL|CRITICAL)\]?\s)",
    # logrus (text_formatter.go), as dockerd and containerd use it.
    r"(?:time=\S{1,40} )?level=(?:error|fatal|panic)\b",
    # FRRouting, lib/zlog.c: the code of lib/ferr.h, of errors and warnings alone.
    r"(?:\[[\w-]{1,20}\] ?)?\[EC \d{1,12}\]",
    # include/drm/drm_print.h, DRM_ERROR.
    r"\[drm(?::[\w.]{1,80}(?: \[\w{1,40}\])?)?\] \*ERROR\*",
    # open-gpu-kernel-modules, nvlog_printf.c: the released driver prints level error and worse,
    # with the function before the words.
    r"NVRM: (?:GPU\d+ |GPU [0-9a-fA-F:.]{7,16}: )?_?[a-z]\w{2,80}: ",
    # Lustre, libcfs/debug.c (D_CANTMASK): of what names its place in the source, errors and
    # warnings reach the console.
    r"(?:Lustre|LNet|LustreError|LNetError): \d+:\d+:\(",
    # OpenSM (osm_log.h); Spectrum Scale (mmfs.log).
    r"(?:\d{6} \[[0-9A-F]{4,8}\] 0x\w\w -> )?\w{0,60}:? ?ERR [0-9A-F]{4}:",
    r"\[[AEX](?::\d{1,4})?\] ",
    # HPE's AOS-CX (Event Log Message Reference Guide).
    r"Event\|\d{1,5}\|LOG_(?:EMERG|ALERT|CRIT|ERR)\|",
    # Extreme's EXOS (EMS Messages Catalog), NVIDIA's Onyx and UFM.
    r"(?:\d\d/\d\d/\d{4} [\d:.]{8,12} )?<(?:Crit|Erro):[\w.-]{2,60}>",
    r"(?:TID \d{1,20}: )?\[[\w-]{2,20}\.(?:EMERG|ALERT|CRIT|ERR)\]: ",
    r"\[\d{1,10}\] \[\d{1,10}\] (?:CRITICAL|MAJOR) ",
    # OpenZFS (spl-err.c, CE_WARN); not the head of a call trace (kernel/panic.c).
    r"WARNING: (?!CPU: )",
    # NCCL (src/debug.cc), UCX (src/ucs/debug/log.c): the place of the process and of the source.
    r".{0,160}\b(?:NCCL WARN|UCX  (?:ERROR|FATAL|WARN)) ",
)
# Programs that put such a mark before each of their errors and warnings, so that a line without one
# is none: Slurm (src/common/log.c: what is logged by info() has no mark), Pacemaker
# (lib/common/logging.c).
SELF_GRADING = (
    *("slurm*", "sackd", "pacemaker*", "crmd", "stonith*", "attrd", "lrmd", "cib"),
    *("srun", "sbatch", "salloc", "scontrol", "sacct", "sacctmgr", "squeue", "sinfo", "pengine"),
)
WORSE_MARK = r"\b(?i:error|fatal|critical|err|crit|panic|alert|emerg\w*|warn(?:ing)?)\b\s{0,8}[:\]]"
# How programs mark what is no error: those above, NVIDIA's managers, logrus, OpenSM.
CALM_MARKS = (
    r"(?i:(?:\[[^\]]{0,60}\]\s*)?(?:debug\d?|verbose|info|notice|trace)\s{0,8}:)",
    r"(?:\[[^\]]{0,60}\]\s*){0,3}\[?(?:INFO|DEBUG|NOTICE|VERB)\]?\s",
    r"(?:time=\S{1,40} )?level=(?:info|debug|trace)\b",
    r"-[IV]- ",
    r"Event\|\d{1,5}\|LOG_(?:NOTICE|INFO|DEBUG)\|",
    r"(?:\d\d/\d\d/\d{4} [\d:.]{8,12} )?<(?:Noti|Info|Summ):[\w.-]{2,60}>",
    r"(?:TID \d{1,20}: )?\[[\w-]{2,20}\.(?:NOTICE|INFO|DEBUG)\]: ",
    r"\[\d{1,10}\] \[\d{1,10}\] INFO ",
    # Ceph (src/common/dout.h: what is above 0 is for its makers; src/common/LogEntry.cc).
    r"[0-9a-f]{12,16} {1,3}[1-9]\d? ",
    r".{0,76}\[(?:DBG|INF)\] ",
)
# What a program prints for its makers alone is none whatever it speaks of. So is what NCCL tells
# where it is asked for everything (src/debug.cc: what is wrong is WARN).
DEBUG_MARK = (
    r"(?:\[[^\]]{0,60}\]\s*){0,3}(?:\w{1,20}: )?\[?(?i:debug\d?)(?:\s{0,2}:|\]|\s)"
    r"|.{0,160}\bNCCL (?:INFO|TRACE) "
)
# Those of them by which alone a line may be worth a look: without them, a word or a severity is.
ERROR_MARKS_ANYWHERE = (
    r"\[EC \d{1,12}\]",
    r"NVRM: ",
    r"L(?:ustre|Net): \d+:\d+:\(",
    r"NCCL WARN|UCX  (?:ERROR|FATAL|WARN)",
    r"\bmmfs(?:\[\d+\])?: \[[AEX](?::\d{1,4})?\] ",
    r"\bWARNING: ",
    r"\|LOG_(?:EMERG|ALERT|CRIT|ERR)\|",
    r"%%\d\d\w{1,40}/[0-3]/",
    r"<(?:Crit|Erro):",
    # A network system's mnemonic may say alone what is wrong.
    r"[A-Z0-9]_(?:FAIL(?:ED|URE)?|FAULT|ERR(?:OR)?|DOWN|LOST|MISMATCH|EXCEED(?:ED)?|INVALID)\b ?:",
    r"\.service: (?:[Mm]ain|[Cc]ontrol) process exited",
    r"\]:? (?:segfault|general protection|trap |bad frame)",
)


def compile_names(names: Sequence[str]) -> re.Pattern[str]:
    """One pattern for names that may hold `*`."""
    return re.compile("|".join(map(translate, names)))
