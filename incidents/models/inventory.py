"""Tables of the inventory: machines, their parts, what joins them, and which part was in which slot
when.

Data and constraints only; `incidents.inventory.services`, `incidents.inventory.part_history` and,
for what is decommissioned, `incidents.reserve.decommissions` alone write. Pods, rails and
partitions are names that machines carry: a table of names would say nothing more.
"""

from __future__ import annotations

from typing import ClassVar, Self

from django.db import models
from django.db.models import Q

from detectors import resources
from incidents.vocabulary.part_kinds import NicRole, Part


class NodeQuerySet(models.QuerySet["Node"]):
    def inventoried(self) -> Self:
        """Without those that only spoke to us."""
        return self.filter(is_provisional=False)


class Node(models.Model):
    """A machine that Slurm knows, or one that only spoke to us (`is_provisional`: never acted
    upon)."""

    name = models.CharField(max_length=64, unique=True)
    address = models.CharField(
        max_length=255, blank=True, help_text="where it answers SSH and sends syslog from"
    )
    ssh_port = models.PositiveIntegerField(default=22)
    bmc_address = models.CharField(
        max_length=255,
        blank=True,
        help_text="where its management controller answers: 10.0.9.1, https://bmc-gn001",
    )
    role = models.CharField(max_length=32, default="compute")
    pod = models.CharField(max_length=32, blank=True)
    rack = models.CharField(max_length=32, blank=True)
    partitions = models.JSONField(default=list, blank=True)
    serial = models.CharField(max_length=64, blank=True)
    gpu_count = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="as Slurm or the files count them"
    )
    is_provisional = models.BooleanField(default=False)
    # Nobody writes or reads it any more: `NodeInterval` says it.
    is_serving = models.BooleanField(
        default=True,
        db_default=True,
        help_text="takes jobs of users, by the last look at Slurm's nodes",
    )
    in_service_since = models.DateTimeField(null=True, blank=True)
    boot_id = models.CharField(max_length=64, blank=True)
    boot_seen_at = models.DateTimeField(null=True, blank=True)

    objects = NodeQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def resource(self) -> str:
        return resources.node(self.name)


class Gpu(models.Model):
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="gpus")
    index = models.PositiveSmallIntegerField()
    pci_address = models.CharField(max_length=16)
    uuid = models.CharField(max_length=64, blank=True)
    serial = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering: ClassVar = ["node", "index"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["node", "index"], name="one_gpu_per_index"),
            models.UniqueConstraint(fields=["node", "pci_address"], name="one_gpu_per_pci_address"),
        ]

    def __str__(self) -> str:
        return f"{self.node.name} GPU {self.index}"

    @property
    def resource(self) -> str:
        return resources.gpu(self.node.name, self.pci_address)


class NvSwitch(models.Model):
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="nvswitches")
    pci_address = models.CharField(max_length=16)
    uuid = models.CharField(max_length=64, blank=True)
    serial = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering: ClassVar = ["node", "pci_address"]
        verbose_name = "NVSwitch"
        verbose_name_plural = "NVSwitches"
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["node", "pci_address"], name="one_nvswitch_per_pci_address"
            )
        ]

    def __str__(self) -> str:
        return f"{self.node.name} NVSwitch {self.pci_address}"

    @property
    def resource(self) -> str:
        return resources.nvswitch(self.node.name, self.pci_address)


class Nic(models.Model):
    """`device` is the RDMA device where there is one. Role and rail left empty follow from the
    cable."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="nics")
    device = models.CharField(max_length=32)
    netdev = models.CharField(max_length=32, blank=True, help_text="the interface, such as rail0")
    pci_address = models.CharField(max_length=16, blank=True)
    role = models.CharField(
        max_length=16, blank=True, choices=[(role.value, role.value) for role in NicRole]
    )
    also = models.CharField(max_length=16, blank=True, help_text="what it serves beside its role")
    rail = models.PositiveSmallIntegerField(null=True, blank=True)
    speed_gbps = models.PositiveIntegerField(null=True, blank=True)
    mtu = models.PositiveIntegerField(null=True, blank=True)
    address = models.CharField(max_length=64, blank=True)
    mac = models.CharField(max_length=64, blank=True)
    serial = models.CharField(max_length=64, blank=True)
    firmware = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering: ClassVar = ["node", "id"]
        verbose_name = "NIC"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["node", "device"], name="one_nic_per_device")
        ]

    def __str__(self) -> str:
        return f"{self.node.name} NIC {self.device}"

    @property
    def resource(self) -> str:
        return resources.nic(self.node.name, self.device)


class SwitchQuerySet(models.QuerySet["Switch"]):
    def inventoried(self) -> Self:
        """Without those that only spoke to us."""
        return self.filter(is_provisional=False)


class Switch(models.Model):
    name = models.CharField(max_length=64, unique=True)
    role = models.CharField(max_length=16, help_text="leaf, spine, storage or management")
    address = models.CharField(max_length=255, blank=True)
    ssh_port = models.PositiveIntegerField(default=22)
    snmp_port = models.PositiveIntegerField(default=161)
    snmp_engine_id = models.CharField(
        max_length=64, blank=True, help_text="hexadecimal; for its SNMPv3 traps"
    )
    pod = models.CharField(max_length=32, blank=True)
    rack = models.CharField(max_length=32, blank=True)
    rail = models.PositiveSmallIntegerField(null=True, blank=True)
    serial = models.CharField(max_length=64, blank=True)
    is_provisional = models.BooleanField(default=False)
    in_service_since = models.DateTimeField(null=True, blank=True)

    objects = SwitchQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["name"]
        verbose_name_plural = "switches"

    def __str__(self) -> str:
        return self.name

    @property
    def resource(self) -> str:
        return resources.switch(self.name)


class Module(models.Model):
    """A transceiver in a switch; one of 800 Gb/s may hold two ports of 400 Gb/s, each on half of
    its lanes."""

    switch = models.ForeignKey(Switch, on_delete=models.CASCADE, related_name="modules")
    name = models.CharField(max_length=32)
    kind = models.CharField(max_length=64, blank=True, help_text="such as 800GBASE-2DR4")
    lanes = models.PositiveSmallIntegerField(default=8)
    serial = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering: ClassVar = ["switch", "id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["switch", "name"], name="one_module_per_name")
        ]

    def __str__(self) -> str:
        return f"{self.switch.name} module {self.name}"

    @property
    def resource(self) -> str:
        return resources.module(self.switch.name, self.name)


class Port(models.Model):
    """`first_lane` and `lanes` are the port's share of its module's lanes."""

    switch = models.ForeignKey(Switch, on_delete=models.CASCADE, related_name="ports")
    name = models.CharField(max_length=64)
    module = models.ForeignKey(
        Module, null=True, blank=True, on_delete=models.SET_NULL, related_name="ports"
    )
    first_lane = models.PositiveSmallIntegerField(null=True, blank=True)
    lanes = models.PositiveSmallIntegerField(null=True, blank=True)
    speed_gbps = models.PositiveIntegerField(null=True, blank=True)
    mtu = models.PositiveIntegerField(null=True, blank=True)
    fec = models.CharField(max_length=16, blank=True)
    is_autonegotiated = models.BooleanField(null=True, blank=True)
    is_admin_up = models.BooleanField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["switch", "name"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["switch", "name"], name="one_port_per_name")
        ]

    def __str__(self) -> str:
        return f"{self.switch.name} {self.name}"

    @property
    def resource(self) -> str:
        return resources.port(self.switch.name, self.name)


class Cable(models.Model):
    """Both ends as resource paths, such as node/gn001/nic/mlx5_0 and
    switch/leaf-01/port/Ethernet0."""

    a = models.CharField(max_length=160)
    b = models.CharField(max_length=160)
    speed_gbps = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["a"], name="one_cable_per_a_end"),
            models.UniqueConstraint(fields=["b"], name="one_cable_per_b_end"),
        ]

    def __str__(self) -> str:
        return f"{self.a} to {self.b}"


class PowerFeed(models.Model):
    name = models.CharField(max_length=64, unique=True)
    source = models.CharField(
        max_length=255, blank=True, help_text="what it comes from: a UPS, a panel, a line"
    )

    def __str__(self) -> str:
        return self.name


class Rack(models.Model):
    """`feeds` are names of power feeds, `management_switch` the switch that its machines are
    managed over."""

    name = models.CharField(max_length=32, unique=True)
    pod = models.CharField(max_length=32, blank=True)
    feeds = models.JSONField(default=list, blank=True)
    management_switch = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name


class StoragePath(models.Model):
    """How machines of some roles reach one file system: by which NICs, over which switches, to
    which servers."""

    mount = models.CharField(max_length=160, unique=True)
    source = models.CharField(max_length=255, blank=True)
    servers = models.JSONField(default=list, blank=True)
    switches = models.JSONField(default=list, blank=True)
    nics = models.JSONField(default=list, blank=True)
    roles = models.JSONField(default=list, blank=True)

    def __str__(self) -> str:
        return self.mount


class Expectation(models.Model):
    """What is declared for all machines of one role; `{name}` and `{address}` in a URL are the
    machine's own."""

    kind = models.CharField(max_length=8, help_text="node, switch or site")
    role = models.CharField(max_length=32)
    settings = models.JSONField(default=dict, blank=True)
    urls = models.JSONField(default=dict, blank=True)
    mounts = models.JSONField(default=list, blank=True)
    services = models.JSONField(default=list, blank=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["kind", "role"], name="one_expectation_per_role")
        ]

    def __str__(self) -> str:
        return f"{self.kind} of role {self.role}"


class Alias(models.Model):
    """Another name of a resource: an address, a long host name, a GPU's UUID."""

    name = models.CharField(max_length=160, unique=True)
    resource = models.CharField(max_length=160)

    class Meta:
        verbose_name_plural = "aliases"

    def __str__(self) -> str:
        return f"{self.name} is {self.resource}"


class Shown(models.Model):
    """What one machine shows of what its peers should show alike, such as a driver's version."""

    owner = models.CharField(max_length=96, help_text="the machine: node/gn001, switch/leaf-03")
    key = models.CharField(max_length=96)
    value = models.CharField(max_length=160)
    role = models.CharField(max_length=32, blank=True)

    class Meta:
        verbose_name_plural = "shown"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["owner", "key"], name="one_value_shown_per_key")
        ]

    def __str__(self) -> str:
        return f"{self.owner} {self.key} {self.value}"


class InService(models.Model):
    """One stay of one part in one slot: the history of parts that were moved or replaced. Rows are
    only ever closed."""

    part = models.CharField(max_length=16, choices=[(part.value, part.value) for part in Part])
    serial = models.CharField(max_length=64)
    uuid = models.CharField(max_length=64, blank=True)
    firmware = models.CharField(max_length=64, blank=True)
    slot = models.CharField(
        max_length=160, help_text="resource path, such as node/gn001/gpu/0000:19:00.0"
    )
    owner = models.CharField(max_length=96, help_text="the machine: node/gn001, switch/leaf-03")
    from_at = models.DateTimeField(help_text="first seen or told to be there")
    to_at = models.DateTimeField(null=True, blank=True, help_text="empty: it is there")
    came = models.CharField(max_length=255, help_text="why it came")
    went = models.CharField(max_length=255, blank=True, help_text="why it went")

    class Meta:
        ordering: ClassVar = ["-from_at", "-id"]
        verbose_name = "part in service"
        verbose_name_plural = "parts in service"
        _is_there = Q(to_at__isnull=True)
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["part", "slot"],
                condition=_is_there,
                name="one_part_in_a_slot_at_a_time",
            ),
            models.UniqueConstraint(
                fields=["part", "serial"],
                condition=_is_there,
                name="one_slot_of_a_part_at_a_time",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["owner"], condition=_is_there, name="in_service_by_owner"),
            models.Index(fields=["serial"], name="in_service_by_serial"),
        ]

    def __str__(self) -> str:
        return f"{self.part} {self.serial} in {self.slot}"


class Decommission(models.Model):
    """A machine that is being taken away for good: nothing is started on it. Its ends are rows
    too."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="decommissions")
    reason = models.CharField(max_length=255)
    set_by = models.CharField(max_length=150)
    set_at = models.DateTimeField()
    ended_at = models.DateTimeField(
        null=True, blank=True, help_text="empty: it is being decommissioned"
    )
    ended_by = models.CharField(max_length=150, blank=True)
    ended_why = models.CharField(max_length=255, blank=True)

    class Meta:
        ordering: ClassVar = ["-set_at", "-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["node"],
                condition=Q(ended_at__isnull=True),
                name="one_decommission_per_node",
            )
        ]

    def __str__(self) -> str:
        return f"{self.node.name}: {self.reason}"


class InventoryRevision(models.Model):
    """Counts the changes of the inventory, so that each process knows when what it keeps in memory
    is old. One row."""

    name = models.CharField(max_length=16, primary_key=True)
    number = models.PositiveBigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.name} {self.number}"
