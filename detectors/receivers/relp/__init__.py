"""RELP, the syslog transport that acknowledges (https://www.rsyslog.com/doc/relp.html)."""
