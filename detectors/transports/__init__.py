"""How detectors reach the world: SSH, local commands, HTTP, SNMP."""
