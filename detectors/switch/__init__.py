"""Detectors that look at switches: SNMP, SONiC, traps."""
