"""From raw lines of switches to facts. The lines are our own, in the shapes that SONiC and other
vendors print."""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from detectors.catalog.catalog import load
from detectors.faults import Component, EventKind
from tests.matching import get_shipped_matcher

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
RAISED, CLEARED = EventKind.RAISED, EventKind.CLEARED
CAPTURES = Path(__file__).parents[1] / "captures"
SONIC = "Nov 21 03:59:58.123456 leaf-03 "


@cache
def matcher():
    return get_shipped_matcher()


def facts(line):
    return matcher().facts(line.encode(), default_host="leaf-03", observed_at=NOW, zone=UTC)


def fact(line):
    (only,) = facts(line)
    return only


def captured(name):
    lines = (CAPTURES / name).read_text().splitlines()
    return [tuple(line.split("\t", 2)) for line in lines if not line.startswith("#")]


SONIC_LINES = captured("sonic.tsv")
VENDOR_LINES = captured("other_switches.tsv")


@pytest.mark.parametrize(("fault_type", "event", "line"), SONIC_LINES)
def test_a_sonic_line_is_the_fault_it_speaks_of(fault_type, event, line):
    found = fact(line)
    assert (found.fault_type, found.event) == (fault_type, event)
    assert found.component is Component.INTERCONNECT_SWITCH
    assert found.resource.startswith("switch/leaf-03")


@pytest.mark.parametrize(("fault_type", "event", "line"), VENDOR_LINES)
def test_another_vendors_line_is_the_fault_it_speaks_of(fault_type, event, line):
    found = fact(line)
    assert (found.fault_type, found.event) == (fault_type, event)


@pytest.mark.parametrize(
    "text",
    [
        "%ETHPORT-5-IF_DOWN_ADMIN_DOWN: Interface Ethernet1/9 is down (Administratively down)",
        "%LINK-5-CHANGED: Interface Ethernet1/9, changed state to administratively down",
        "%SYS-5-CONFIG_I: Configured from console by admin on vty0",
        "%$ VDC-1 %$ %VSHD-5-VSHD_SYSLOG_CONFIG_I: Configured from vty by admin on console0",
        "craftd[77]: Minor alarm set, Rescue configuration is not set",
        "alarmd[77]: Alarm set: License color=YELLOW, class=CHASSIS, reason=BGP Routing Protocol usage requires a license",
        "fpd-serv[77]: %PKT_INFRA-FM-3-FAULT_MAJOR : ALARM_MAJOR :FPD-NEED-UPGRADE :DECLARE :0/2:",
        "%AUTHPRIV-3-SYSTEM_MSG: pam_aaa:Authentication failed from 192.0.2.7",
        "%SPANTREE-6-INTERFACE_STATE: Interface Ethernet9 instance Vl9 moving from discarding to forwarding",
        "%PROCMGR-6-PROCESS_STARTED: 'Bgp' starting with PID=99",
        "NOTICE bgp#bgpd[45]: 10.0.3.1 went from OpenSent to OpenConfirm",
        "INFO systemd[1]: Started BGP container.",
        "INFO bgp#supervisord 2026-11-21 03:59:57,385 INFO stopped: rsyslogd (exit status 0)",
        "INFO bgp#supervisord 2026-11-21 03:59:57,385 INFO success: bgpd entered RUNNING state",
        "NOTICE swss#orchagent: :- addNeighbor: Created neighbor 00:11:22:33:44:55 on Vlan9",
        "NOTICE pmon#xcvrd[38]: Ethernet64: Got SFP inserted event",
        "NOTICE pmon#xcvrd[38]: CMIS: Ethernet64: READY",
        "INFO systemd[1]: syncd.service: Succeeded.",
        "INFO kernel: [  812.331200] EXT4-fs (sda3): mounted filesystem with ordered data mode. Opts: (null)",
        "INFO kernel: [  812.331200] pcieport 0000:00:01.0: AER: enabled with IRQ 24",
        "INFO smond: Fan1(Fan Tray 1, Fan 1): state changed from UNKNOWN to OK",
        "last message repeated 5 times",
        "NOTICE syncd#syncd: :- sai_metadata_apis_query: :- failed to query api SAI_API_BMTOR: SAI_STATUS_NOT_IMPLEMENTED (-15)",
        "ERR syncd#syncd: [none] SAI_API_QUEUE:_brcm_sai_cosq_stat_get:1353 queue egress Min limit get failed with error -4.",
        "INFO syncd#syncd: [none] SAI_API_SWITCH:brcm_sai_create_switch:918 switch created",
        "ERR syncd#syncd: [none] SAI_API_PORT:brcm_sai_get_port_serdes_attribute_cmn:77 RX VGA get failed with error -8.",
        "ERR syncd#syncd: [none] SAI_API_SWITCH:sai_query_attribute_enum_values_capability:77 Error in enum 7 query, rv=-8",
        "ERR syncd#syncd: [none] SAI_API_PORT:_brcm_sai_read_fec_stat_err_counters_acc:77 Count failed - port: 7, rc: -16",
        "ERR syncd#syncd: [none] SAI_API_ACL:_brcm_sai_acl_table_group_bind_point_detach:77 Error in bind point detach -7",
        "ERR syncd#syncd: [none] SAI_API_LAG:_brcm_sai_lag_acl_bind_update:77 ACL bind update failed with error -7",
        "ERR syncd#syncd: [none] SAI_API_SWITCH:brcm_sai_set_switch_attribute:77 attribute 7 is not supported, error -2",
        "INFO syncd#syncd: [none] SAI_API_PORT:_brcm_sai_link_event_cb:77 Port 7 link down event cause: ADMIN_DOWN",
        "ERR pmon#thermalctld[77]: Caught exception while running thermal policy - AttributeError()",
        "INFO bgp#bgpd[77]: [HZN6M-XRM1G] %NOTIFICATION: sent to neighbor 192.0.2.7 6/4 (Cease/Administrative Reset) 0 bytes",
        "ERR pmon#chassis_db_init: Failed to load chassis due to ModuleNotFoundError()",
        "ERR syncd#SDK: [BRIDGE.ERR] __sdk_bridge_db_get_bridge failed (Entry Not Found).",
        "INFO kernel: [  7.7] sx_core 0000:01:00.0: SX_CMD_ACCESS_REG. Got FW status 0x26 after SW reset",
        "INFO kernel: [  7.7] sx_core 0000:01:00.0: reset-flow: device is in ready-state after reset [waited 7 msec]",
        "NOTICE kernel: [  7.7] sxd_kernel: [notice] Health-Check: FW long-command timeout setting is 7 seconds",
        "INFO kernel: [  7.7] mlxsw_minimal 2-0048: Firmware revision: 77.2000.7777",
        "<Info:HAL.Port.Info> Port 49 media inserted, revision A",
        "<Noti:cli.logLocalCmd> serial admin: show fan",
        "<Info:AAA.logout> Administrative account (admin) logout from ssh",
        "<Warn:AAA.authFail> Login failed for user admin through ssh (192.0.2.7)",
        "raslogd: 2026/11/21-03:59:58, [SEC-1193], 77, FID 128, INFO, leaf-03, Security violation: Login failure attempt via SSH. IP Addr: 192.0.2.7.",
        "raslogd: 2026/11/21-03:59:58, [SULB-1003], 77, FID 128, INFO, leaf-03, Firmwarecommit has started.",
        "raslogd: 2026/11/21-03:59:58, [PORT-1011], 77, FID 128, INFO, leaf-03, Port 7 is enabled.",
        "System: running-config was changed by admin from ssh client 192.0.2.7",
        "mgmtd[777]: [mgmtd.NOTICE]: Config change ID 77: requested by: user admin",
        "[7777] [604] INFO [Maintenance] Grid [Grid]: Fabric health report created",
        "%%10SHELL/5/SHELL_LOGIN: VTY logged in from 192.0.2.7.",
        "%%10LAGG/6/LAGG_INACTIVE_CONFIGURATION: Member port HGE1/0/7 of aggregation group BAGG7 changed to the inactive state, because the aggregation configuration of the port is incorrect.",
        "TRAPMGR[trapTask]: traputil.c(777) 77 %% Cold Start: Unit: 0",
        "chassisd[777]: CHASSISD_BLOWERS_SPEED_FULL: Fans and impellers being set to full speed [startup]",
        "rpd[777]: bgp_listen_accept: Connection attempt from unconfigured neighbor: 192.0.2.7+7777",
        "snmpd[777]: %DAEMON-6-SNMPD_TRAP_QUEUED: Adding trap to 192.0.2.7 to destination queue, 7 traps in queue",
        "chassisd[777]: CHASSISD_FRU_OFFLINE_NOTICE: Taking FPC 7 offline: Restarted by cli command",
        "system,error,critical login failure for user admin from 192.0.2.7 via winbox",
        "%VPC-2-VPC_ROLE_CHANGE_NOTIFICATION: VPC role is changed from Secondary to Primary",
        "ProcMgr: %PROCMGR-3-SHUTDOWNREQUESTED: ProcMgr shutdown requested via SIGQUIT or SIGTERM to worker (PID=777)",
        "CLI_WEB[emWeb]: cmd_logger_api.c(77) 77 %% NOTE [CLI:admin:192.0.2.7] User admin logged in to enable mode.",
        "NOTICE bgp#ospfd[45]: [Z8P0K-4XJ2M] AdjChg: Nbr 192.0.2.7, NbrIP 192.0.2.8 (default) on Ethernet64: Init -> 2-Way (2-WayReceived)",
        "INFO bgp#isisd[47]: [HVNVV-2HYFR] %ADJCHANGE: Adjacency to spine-07 (Ethernet64) for level-2 changed from Down to Initializing, new",
        "NOTICE bgp#watchfrr[22]: [VTVCM-Y2NW3] Configuration Read in Took: 00:00:07",
        'INFO teamd#teamd_PortChannel7[33]: Ethernet64: Changed port state: "disabled" -> "expired"',
        "ERR syncd#SDK: [SAI_UTILS.ERR] ./src/mlnx_sai_utils.c[777]- get_dispatch_attribs_handler: Failed Get #7, PORT_ID, key:BRIDGE_PORT [OID:0x77]",
        "ERR syncd#SDK: [SAI_PORT.ERR] ./src/mlnx_sai_port.c[777]- mlnx_port_samplepacket_session_get: Egress mirroring is not supported on SPC6",
        "ERR syncd#SDK: [SX_API_INTERNAL.ERR] Failed command read at communication channel: Connection reset by peer",
        "INFO database#supervisord: redis 55:M 21 Nov 2026 03:59:57.123 # WARNING overcommit_memory is set to 0! Background save may fail under low memory condition.",
        "INFO healthd: Key 'TEMPERATURE_INFO|ASIC' field 'temperature' unavailable in database 'STATE_DB'",
        "ERR pmon#xcvrd[38]: Failed to confirm VDM freeze status for port Ethernet64",
        "%SYSMGR-6-HANDSHAKE_DONE: Handshake with the service l2fm is done.",
        "%ETH_PORT_CHANNEL-5-FOP_CHANGED: port-channel5: first operational port changed from Ethernet1/1 to Ethernet1/2",
        "switchd[777]: sync_base.c:596 swp51: ifindex 54, admin up",
        "switchd[777]: hal_flx.c:77 INFO port swp1 has 0 errors",
        "ptmd[71]: ptm_bfd.c:2471 Created new session 0x1 with peer 192.0.2.11 port swp1",
        "init: exec_command: /usr/sbin/chassisd (PID 1234) started",
        "%%10ARP/6/ARP_INFO: ARP entry of 192.0.2.1 was learnt on Vlan10.",
        "%%10STP/6/STP_NOTIFIED_TC: Instance 0's port HundredGigE1/0/13 was notified a topology change.",
        "%EC-5-COMPATIBLE: Te1/0/1 is compatible with port-channel members",
        "mlxd[3100]: [mlxd.NOTICE]: Leaf L07 was inserted",
        "INFO swss#supervisord 2026-11-21 03:59:57,377 WARN received SIGTERM indicating exit request",
        "INFO pmon#supervisord 2026-11-21 03:59:57,377 INFO exited: dependent-startup (exit status 3; expected)",
        "ERR systemd[1]: Failed to start dhcp_relay container.",
        "ERR syncd#syncd: [none] SAI_API_PORT:_brcm_sai_read_fec_stat_err_counters:77 Get Port Phy Control FEC Symbol Error Count failed - port: 7, rc: -16",
        "ERR syncd#syncd: [none] SAI_API_PORT:brcm_sai_get_port_attribute_cmn:77 Fec Alignment lock status failed with error -8.",
        "INFO syncd#supervisord 2026-11-21 03:59:57,377 INFO exited: syncd (exit status 0; expected)",
        "[77] [526] CRITICAL Site [] [Fabric Notification] Grid [Grid]: Fabric topology changed",
        "[77] [64] INFO Site [] [Fabric Topology] Node [gpu-07]: Node is in service",
        "[77] [393] MINOR Site [] [Fabric Configuration] Switch [Switch: leaf-03]: Firmware version is not recommended",
        "qsfp_service[77]: I1121 03:59:58.777777    77 QsfpModule.cpp:682] Transceiver:eth1/7 eth1/7/1: FBOSS_EVENT(LINK_ALERT): latched link fault flags (txLos/rxLos/txLol/rxLol/txFault) cleared on ports [eth1/7/1]",
        "qsfp_service[77]: I1121 03:59:58.777777    77 TransceiverManager.cpp:910] FBOSS_EVENT(TRANSCEIVER_FW_UPGRADE): Firmware upgrade SUCCESSFUL for<transceiver:7><port:eth1/7/1>",
        "wedge_agent[77]: I1121 03:59:58.777777    77 SwSwitch.cpp:77] FBOSS_EVENT(SERVICE): SwitchRunState changed from UNINITIALIZED to INITIALIZED",
    ],
)
def test_a_switchs_everyday_line_is_benign(text):
    assert facts(SONIC + text) == []


@pytest.mark.parametrize(
    "end",
    [
        "%PLATFORM_ENV-2-TEMP_ALARM_CLEAR: sensor 4",
        "%PLATFORM_ENV-2-TEMP_HIGH_CLEARED: sensor 4",
        "%ENVIRONMENT-2-TEMP_MAJOR_RECOVERED: sensor 4",
        "%ENVMON-2-TEMP_WARN: sensor 4 returned to normal",
        "%ENVMON-2-FAN_SPEED: fan 2 is back to normal",
        "%ENVMON-2-PS_DOWN: input power returned on supply 1",
        "%PLATFORM-2-PS_FAIL: alarm condition cleared on supply 1",
        "%SFF8472-3-THRESHOLD_VIOLATION: Te1/1/1: Rx power returned within limits",
    ],
)
def test_an_alarm_that_is_over_never_begins_a_fault(end):
    assert fact("<189>Nov 21 03:59:58 leaf-03 " + end).event is CLEARED


def test_a_call_that_returned_an_error_ends_nothing():
    text = (
        "ERR swss#orchagent: :- handleSaiCreateStatus: Encountered failure in create operation,"
        " the call returned SAI_STATUS_FAILURE"
    )
    assert fact(SONIC + text).event is RAISED


def test_what_syncd_alone_logs_as_an_error_opens_no_incident():
    text = "ERR syncd#syncd: :- threadFunction: time span WD exceeded 31000 ms for set:SAI_PORT"
    assert not load()[fact(SONIC + text).fault_type].opens_incident


# Forms that SONiC's maintainers call harmless (sonic-mgmt, loganalyzer), in our own words and numbers.
@pytest.mark.parametrize(
    "text",
    [
        "ERR syncd#SDK: [PORT.ERR] port 12 has no such counter",
        "ERR syncd#syncd: [none] SAI_API_PORT:brcm_sai_get_port_stats:77 Multi stats get failed with error -4",
        "ERR syncd#syncd: [none] SAI_API_SWITCH:sai_query_attribute_capability:9 failed with error -2.",
        "ERR syncd0#syncd: :- sendApiResponse: api SAI_COMMON_API_SET failed in syncd mode: SAI_STATUS_NOT_SUPPORTED",
        "ERR syncd#syncd: :- translateVidToRid: unable to get RID for VID oid:0x1a",
        "ERR syncd#syncd: :- process_on_fdb_event: invalid OIDs in fdb notifications",
        "ERR syncd#syncd: :- collectData: Failed to get port attr for VID 0x1000000000a1, RID:0x1: -2",
        "WARNING syncd#SDK: :- check_attribs_metadata: Not implemented attribute SAI_SWITCH_ATTR_X",
        "ERR gbsyncd#syncd: :- diagShellThreadProc: Failed to enable switch shell: SAI_STATUS_NOT_SUPPORTED",
        "ERR swss#orchagent: :- getPort: Failed to get cached bridge port ID 0x3a",
        "ERR swss#orchagent: :- getResAvailability: Failed to get availability counter for acl_entry",
        "ERR swss#orchagent: :- handleSaiGetStatus: Encountered failure in get operation, SAI API: SAI_API_PORT",
        "ERR swss#orchagent: :- handleSaiFailure: Encountered failure in set operation, SAI API: SAI_API_QUEUE, status: SAI_STATUS_INVALID_PARAMETER",
        "ERR swss#orchagent: :- queryHashNativeHashFieldListEnumCapabilities: Failed to get attribute(SAI_HASH_ATTR_X) enum value capabilities",
        "ERR swss#orchagent: :- removeLag: Failed to remove non-empty LAG PortChannel7",
        "ERR swss#orchagent: :- setState: State transition from active to active is not-handled",
        "ERR swss#buffermgrd: :- doSpeedUpdateTask: Unable to create/update PG profile for port Ethernet8",
        "ERR swss#fdbsyncd: :- readData: netlink reports an error=-25 on reading a netlink socket",
        "ERR monit[77]: 'dualtorNeighborCheck' status failed (1) -- no output",
        "ERR monit[77]: 'routeCheck' status failed (255) -- routes differ",
        "ERR monit[77]: 'rsyslog' process is not running",
        "ERR pmon#xcvrd[41]: No info found for port Ethernet8 in cfg_port_tbl",
        "ERR pmon#SfpStateUpdateTask[30]: Failed to freeze VDM stats for port 6",
        "ERR pmon#ycable[31]: Error: Could not get port instance for muxcable info for Y cable port Ethernet8",
        "ERR pmon#thermalctld[31]: Caught exception while running thermal policy - AttributeError()",
        "ERR pmon#pcied[31]: Exception occurred during stop_event wait: timeout",
        "ERR teamd#tlm_teamd: :- get_dumps: Can't get dump for LAG 'PortChannel7'. Skipping",
        "ERR macsec#wpa_supplicant: could not process SIGINT or SIGTERM in two seconds. Looks like there",
        "ERR bgp0#root: Error: zebra is not ready to accept connections",
        "ERR lldp#lldp-syncd [lldp_syncd] ERROR: Could not infer system information from: {'id': 7}",
        "ERR lldp#lldp-syncd [lldp_syncd] ERROR: Failed to parse lldp age 7 --",
        "ERR dhcp_relay#dhcpmon[77]: Invalid number of interfaces, downlink/south 7, uplink/north 0",
        "ERR pmon#stormond[77]: [Errno 8] Exec format error: 'disktool'",
        "ERR swss#orchagent: :- pfcFrameCounterCheck: Invalid port oid 0x1000000000077",
        "ERR swss#orchagent: :- setPortPfcAsym: Failed to set PFC mode 0 to port id 0x1000000000077 (rc:-196608)",
        "ERR swss#orchagent: :- setPortPfcAsym: Failed to set PFC mode 1 to port id 0x1000000000077 (rc:-2)",
        "ERR bgp#mgmtd[77]: [AAAAA-77777] mgmt_ds_lock: ERROR: lock already taken on DS:running by session-id 7",
        "ERR gnmi#gnmi-native: :- getDbInfo: Failed to find CHASSIS_STATE_DB database in  namespace",
        "ERR telemetry#supervisord: telemetry terminate called: getDbInfo: Failed to find CHASSIS_STATE_DB",
        "ERR bgp#bgpmon: *ERROR* Failed with rc:7 when execute: ['vtysh', '-c', 'show bgp summary json']",
        "ERR kernel: [    7.777777] audit: rate limit exceeded",
        "ERR teamd#tlm_teamd: Can't get dump for LAG",
        "ERR telemetry#eventd: :- echo_receive: failing to read echo rc=-1",
        "ERR eventd#eventd: :- echo_receive: last:errno=11",
        "ERR lldp#lldpmgrd: ERROR: Failed to parse lldp age 7 --",
        "ERR swss#countersyncd: :- mcCounterCheck: Invalid port oid 0x1000000000077",
        "WARNING syncd#syncd: :- discover: skipping since it causes crash: SAI_STP_ATTR_BRIDGE_ID",
        "ERR gbsyncd#syncd: Metadata file /etc/sonic/vs_chassis_metadata.json not found",
        "ERR syncd#syncd: -E-PVT-0- get_temperature: sensor=GIBRALTAR_HBM_SENSOR_1 is not ready",
        "ERR kernel: [ 77.7] leaba_module_device 0000:07:00.0: eth7: leaba_hostif_get_by_port: Port gid out of range port_gid=777",
        "ERR kernel: [ 77.7] ltc2497 7-0016: i2c transfer failed: -EFAULT",
        "WARNING kernel: [ 77.7] pcieport 0000:00:01.0: device [8086:6f02] error status/mask=00000001/00002000",
        "ERR bgp#bgpmon: *ERROR* Failed with rc:7 when execute: sudo vtysh -u -c 'show bgp summary json'",
        "ERR syncd#syncd: [none] SAI_API_PORT:_brcm_sai_port_stat:77 Invalid port counter index 7",
    ],
)
def test_what_the_maintainers_call_harmless_raises_nothing(text):
    assert facts(SONIC + text) == []


@pytest.mark.parametrize(
    ("reason", "is_fault"),
    [
        ("linkFlapErrDisabled", True),
        ("Link failure", True),
        ("Link not connected", False),
        ("XCVR not inserted", False),
        ("Administratively down", False),
    ],
)
def test_a_port_that_show_interface_calls_down_is_at_fault_where_something_broke(reason, is_fault):
    assert bool(facts(f"Ethernet1/9 is down ({reason})")) == is_fault


@pytest.mark.parametrize(("speed", "is_fault"), [("0", True), ("-1", False)])
def test_a_fan_that_turns_less_than_not_at_all_is_not_there(speed, is_fault):
    line = f"ALERT pmon#sensord: Sensor alarm: Chip psu7-i2c-7-58: fan7: {speed} RPM [ALARM]"
    assert bool(facts(SONIC + line)) == is_fault


# The maintainers pass these over in their tests, too; by the code that prints them something is broken on a switch in use.
@pytest.mark.parametrize(
    "text",
    [
        "ERR bgp0#/supervisor-proc-exit-listener: Process 'bgpd' is not running in namespace 'asic0' (7.0 minutes).",
        "ERR kernel: [  7.7] sxd_kernel: [error] SDK main monitor thread does not respond",
        "ERR pmon#xcvrd[41]: CMIS: Ethernet8: no suitable app for the port appl 1 host_lane_count 8",
        "ERR swss#orchagent: :- setPortPfcAsym: Failed to set PFC mode 1 to port id 0x1000000000077 (rc:-1)",
    ],
)
def test_what_the_maintainers_pass_over_and_is_broken_raises(text):
    assert fact(SONIC + text).event is RAISED


@pytest.mark.parametrize(
    "fault_type", sorted({row[0] for row in SONIC_LINES if row[1] == "cleared"})
)
def test_a_clear_names_the_very_fault_that_was_raised(fault_type):
    of_type = [fact(line) for name, _, line in SONIC_LINES if name == fault_type]
    cleared = {(found.resource, found.qualifier) for found in of_type if found.event is CLEARED}
    assert cleared <= {
        (found.resource, found.qualifier) for found in of_type if found.event is RAISED
    }


def test_a_port_is_named_as_the_switch_names_it():
    assert fact(SONIC_LINES[0][2]).resource == "switch/leaf-03/port/Ethernet64"
    line = "<189>Nov 21 03:59:58 leaf-03 %INTERFACE_VLAN-5-UPDOWN: Line Protocol on Interface vlan 9, changed state to up"
    assert fact(line).resource == "switch/leaf-03/port/vlan9"


def test_two_neighbours_are_two_faults():
    lines = [
        f"{SONIC}INFO bgp#bgpd[45]: %ADJCHANGE: neighbor 10.0.3.{n} in vrf default Down"
        for n in (1, 2)
    ]
    assert {fact(line).qualifier for line in lines} == {"10.0.3.1", "10.0.3.2"}


def test_a_duplicate_address_on_a_node_is_the_nodes():
    text = (
        "Nov 21 03:59:58 mt001 NetworkManager[9]: <warn>  [17.9] device (eno1): IP address 10.9.9.9 cannot be "
        "configured because it is already in use in the network by host 9C:05:91:00:00:09"
    )
    found = fact(text)
    assert (found.fault_type, found.resource, found.qualifier) == (
        "config.duplicate_ip",
        "node/mt001",
        "10.9.9.9",
    )
    assert found.component is Component.MISCONFIGURATION
