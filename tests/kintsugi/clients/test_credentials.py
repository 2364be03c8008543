"""Credentials per target group: who gets which, and what is said of a file that is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from detectors.detector import NotConfigured, Target, TargetKind
from detectors.transports.http import Basic, Bearer
from detectors.transports.snmp_credentials import AuthProtocol, PrivProtocol, SnmpVersion
from kintsugi.clients import credentials
from runbooks.power.access import BmcAccess, BmcKind

NODE, OTHER = Target("gn001", "10.0.0.1"), Target("mt001", "10.0.0.2")
LEAF = Target("leaf-01", "10.0.1.1", kind=TargetKind.SWITCH)
SECRET = "not-for-anybodys-eyes"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("key", "secret", "known_hosts"):
        (tmp_path / name).write_text(f"{SECRET}\n")
    return tmp_path


def loaded(folder: Path, text: str, **environ: str) -> credentials.Credentials:
    path = folder / "credentials.toml"
    path.write_text(text.replace("DIR", str(folder)))
    return credentials.load(path, environ)


def refused(folder: Path, text: str, **environ: str) -> list[str]:
    with pytest.raises(ImproperlyConfigured) as caught:
        loaded(folder, text, **environ)
    return [line.removeprefix(f"{folder}/") for line in str(caught.value).splitlines()]


WHOLE = """
[[group]]
nodes = "gn[001-100]"
[group.ssh]
user = "probe"
key_file = "DIR/key"
known_hosts = "DIR/known_hosts"
port = 2222
[group.http]
bearer_env = "TOKEN"

[[group]]
nodes = "*"
switches = ["leaf-[01-16]", "spine-[01-08]"]
[group.ssh]
agent = true
known_hosts = "DIR/known_hosts"
[group.snmp]
version = "3"
user = "kintsugi"
auth_protocol = "sha256"
auth_key_file = "DIR/secret"
priv_protocol = "aes256"
priv_key_env = "PRIV"
"""


@pytest.fixture
def given(folder: Path) -> credentials.Credentials:
    return loaded(folder, WHOLE, TOKEN="abc", PRIV="longer-than-eight")


def test_the_first_group_that_names_a_target_and_has_the_medium_speaks(
    given: credentials.Credentials,
) -> None:
    probe, agent = given.find_ssh(NODE), given.find_ssh(OTHER)
    assert probe is not None
    assert (probe.user, probe.port) == ("probe", 2222)
    assert agent is not None
    assert agent.key_file is None


def test_the_inventorys_own_snmp_port_goes_first(given: credentials.Credentials) -> None:
    assert given.get_snmp(replace(LEAF, snmp_port=1161)).port == 1161
    assert given.get_snmp(LEAF).port == 161


def test_snmp_comes_from_the_group_of_the_switch(given: credentials.Credentials) -> None:
    found = given.get_snmp(LEAF)
    assert (found.version, found.auth_protocol, found.priv_protocol) == (
        SnmpVersion.V3,
        AuthProtocol.SHA256,
        PrivProtocol.AES256,
    )
    assert (found.auth_key, found.priv_key) == (SECRET, "longer-than-eight")


def test_a_target_that_no_group_names_is_not_configured(given: credentials.Credentials) -> None:
    stranger = Target("sto-01", "10.0.1.2", kind=TargetKind.SWITCH)
    assert given.find_ssh(stranger) is None
    with pytest.raises(NotConfigured, match="sto-01"):
        given.get_snmp(stranger)


def test_tokens_come_from_the_environment_and_passwords_from_files(folder: Path) -> None:
    bearer = loaded(folder, '[[group]]\nsites = "*"\n[group.http]\nbearer_env = "T"\n', T="abc")
    basic = loaded(
        folder, '[[group]]\nsites = "*"\n[group.http]\nuser = "u"\npassword_file = "DIR/secret"\n'
    )
    site = Target("prometheus", "h", kind=TargetKind.SITE)
    assert bearer.find_http(site, "http://h/") == Bearer("abc")
    assert basic.find_http(site, "http://h/") == Basic("u", SECRET)


def test_no_secret_is_ever_printed(given: credentials.Credentials) -> None:
    assert SECRET not in repr(given)
    assert "longer-than-eight" not in repr(given)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            '[[group]]\nnodes = "*"\n[group.snmp]\ncommunity = "public"\n',
            (
                "credentials.toml:4: [group.snmp] community: secrets do not stand in this file: use community_file or"
                " community_env"
            ),
        ),
        (
            '[[group]]\nnodes = "*"\n[group.ssh]\nkey_file = "/nowhere"\n',
            "credentials.toml:4: [group.ssh] key_file: expected a file that can be read",
        ),
        (
            '[[group]]\nnodes = "gn[001-"\n[group.ssh]\nagent = true\nknown_hosts = "DIR/known_hosts"\n',
            'credentials.toml:2: [[group]] nodes: expected a host list such as "gn[001-100],mt001", or "*"',
        ),
        (
            '[[group]]\nnodes = "*"\n[group.ssh]\nknown_hosts = "DIR/known_hosts"\n',
            "credentials.toml:3: [group.ssh] key_file: expected the path of a private key, or agent = true",
        ),
        (
            '[[group]]\nnodes = "*"\n[group.http]\nbearer_env = "UNSET"\n',
            (
                "credentials.toml:4: [group.http] bearer_env: expected a variable of the environment that is set,"
                " UNSET is not"
            ),
        ),
        (
            (
                '[[group]]\nnodes = "*"\n\n[[group]]\nnodes = "*"\n[group.ssh]\nagent = true\npassword = "x"\n'
                'known_hosts = "DIR/known_hosts"\n'
            ),
            "credentials.toml:8: [group.ssh] password: no such key; expected agent, key_file, known_hosts, port, user",
        ),
        (
            '[[group]]\nswitches = "*"\n[group.snmp]\nversion = "3"\nuser = "u"\nauth_protocol = "md5"\n',
            "credentials.toml:6: [group.snmp] auth_protocol: expected none, sha, sha224, sha256, sha384, sha512",
        ),
        (
            '[[group]]\nswitches = "*"\n[group.snmp]\nversion = "3"\n',
            "credentials.toml:4: [group.snmp] version: SNMP v3 needs a user",
        ),
        (
            '[group]\nnodes = "*"\n',
            "credentials.toml:1: expected [[group]] tables and nothing else",
        ),
    ],
)
def test_what_is_wrong_is_said_with_file_line_and_key(
    folder: Path, text: str, complaint: str
) -> None:
    assert complaint in refused(folder, text)


def test_everything_that_is_wrong_is_told_in_one_go(folder: Path) -> None:
    text = '[[group]]\nnodes = 7\n[group.ssh]\nuser = 5\nport = 0\nagent = "yes"\n'
    assert len(refused(folder, text)) >= 4


def test_a_file_that_is_no_toml_is_named(folder: Path) -> None:
    assert "no TOML" in refused(folder, "[[group")[0]


def test_a_secret_that_is_too_short_is_not_repeated(folder: Path) -> None:
    (folder / "short").write_text("abc12\n")
    text = (
        '[[group]]\nswitches = "*"\n[group.snmp]\nversion = "3"\nuser = "u"\nauth_protocol = "sha"\n'
        'auth_key_file = "DIR/short"\n'
    )
    said = "\n".join(refused(folder, text))
    assert "fewer than 8 characters" in said
    assert "abc12" not in said


BMC = """
[[group]]
nodes = "gn[001-050]"
[group.bmc]
kind = "redfish"
user = "kintsugi"
password_file = "DIR/secret"
ca_file = "DIR/key"
system = "{name}"

[[group]]
nodes = "*"
[group.bmc]
kind = "ipmi"
user = "kintsugi"
password_env = "IPMI"
cipher = 3
"""


def with_bmc(folder: Path, text: str, **environ: str) -> credentials.Credentials:
    path = folder / "credentials.toml"
    path.write_text(text.replace("DIR", str(folder)))
    return credentials.load(path, environ, with_bmc=True)


def test_a_nodes_controller_is_entered_as_its_group_says(folder: Path) -> None:
    given = with_bmc(folder, BMC, IPMI="short")
    redfish = BmcAccess(
        BmcKind.REDFISH, "kintsugi", SECRET, ca_file=f"{folder}/key", system="{name}"
    )
    assert given.find_bmc(NODE) == redfish
    assert given.find_bmc(OTHER) == BmcAccess(BmcKind.IPMI, "kintsugi", "short", cipher=3)
    assert given.find_bmc(LEAF) is None
    assert SECRET not in repr(given)


def test_a_process_that_does_not_act_reads_no_secret_of_a_controller(folder: Path) -> None:
    (folder / "secret").unlink()
    given = loaded(folder, BMC)
    assert given.find_bmc(NODE) is None
    assert [group.bmc for group in given.groups] == [None, None]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ('user = "k"\npassword_env = "P"', "[group.bmc] kind: expected redfish or ipmi"),
        (
            'kind = "telnet"\nuser = "k"\npassword_env = "P"',
            "[group.bmc] kind: expected redfish or ipmi",
        ),
        ('kind = "ipmi"\nuser = "k"', "[group.bmc] user: expected a user, and password_file"),
        ('kind = "ipmi"\nuser = "k"\npassword = "P"', "secrets do not stand in this file"),
        ('kind = "ipmi"\nuser = "k"\npassword_env = "LONG"', "a password of 20"),
        (
            'kind = "ipmi"\nuser = "k"\npassword_env = "P"\nverify = false',
            "verify: ipmi has no use for it",
        ),
        (
            'kind = "redfish"\nuser = "k"\npassword_env = "P"\ncipher = 3',
            "cipher: redfish has no use for it",
        ),
        (
            'kind = "ipmi"\nuser = "k"\npassword_env = "P"\ncipher = 256',
            "cipher: expected the number",
        ),
        (
            'kind = "redfish"\nuser = "k"\npassword_env = "P"\nca_file = "/nowhere"',
            "ca_file: expected a file",
        ),
        (
            'kind = "redfish"\nuser = "k"\npassword_env = "P"\nverify = "no"',
            "verify: expected true or false",
        ),
        ('kind = "redfish"\nuser = "k"\npassword_env = "P"\nport = 1', "port: no such key"),
    ],
)
def test_a_controllers_table_that_is_wrong_is_named_with_its_line(
    folder: Path, rows: str, words: str
) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        with_bmc(
            folder, f'[[group]]\nnodes = "*"\n[group.bmc]\n{rows}\n', P="secret", LONG="x" * 21
        )
    (line,) = str(caught.value).splitlines()
    assert words in line
    assert line.removeprefix(f"{folder}/credentials.toml:")[0].isdigit()
