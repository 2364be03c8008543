"""One table of an inventory file: reading a value checks it, and what was wrong is told in one go.
Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeGuard

from detectors import resources
from incidents.topology.topology import MOST_HOSTS, GpuPlace, NicPlace, NvSwitchPlace, expand
from incidents.vocabulary.part_kinds import NicRole

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")
_LAST_PORT = 65535
_NIC_TEXTS = ("netdev", "address", "mac", "serial")
_NIC_NUMBERS = ("rail", "speed_gbps", "mtu")
NIC_ROLES = tuple(role.value for role in NicRole)


class RowError(ValueError):
    """One row's problems, one per line."""


@dataclass
class Row:
    """`values` as TOML gave them. `done` raises RowError with all that was wrong, unread keys
    included."""

    values: dict[str, Any]
    wrong: list[str] = field(default_factory=list)
    _read: set[str] = field(default_factory=set)

    def read_text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if value is None or not isinstance(value, str):
            self.wrong.append(f"missing {key}" if value is None else f"{key} is no text")
            return ""
        return str(value)

    def read_choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        value = self.read_text(key, default)
        if value != default and value not in choices:
            self.wrong.append(f"{key} {value!r} is none of {', '.join(choices)}")
        return value

    def read_number(self, key: str, default: int) -> int:
        value = self._get(key, default)
        if not _is_count(value):
            self.wrong.append(f"{key} {value!r} is no whole number")
            return default
        return value

    def read_repeats(self, key: str) -> int:
        """How often something is repeated: 1 when it is left out."""
        value = self.read_number(key, 1)
        if value > MOST_HOSTS:
            self.fail(f"{key} {value} is more than {MOST_HOSTS}")
        return value

    def read_port(self, key: str, default: int) -> int:
        """The number of a TCP or UDP port."""
        value = self.read_number(key, default)
        if not 0 < value <= _LAST_PORT:
            self.wrong.append(f"{key} {value} is no port: 1 to {_LAST_PORT}")
        return value

    def read_number_or_none(self, key: str) -> int | None:
        return self.read_number(key, 0) if key in self.values else None

    def read_flag_or_none(self, key: str) -> bool | None:
        value = self._get(key, None)
        if value is not None and not isinstance(value, bool):
            self.wrong.append(f"{key} {value!r} is neither true nor false")
            return None
        return value

    def name(self, key: str) -> str:
        return self.check_name(self.read_text(key))

    def read_words(self, key: str, default: Sequence[str] = ()) -> list[str]:
        value = self._get(key, list(default))
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            self.wrong.append(f"{key} is a list of texts")
            return []
        return list(value)

    def read_texts(self, key: str) -> dict[str, str]:
        """A table of texts and numbers, as texts: what devices show is compared as text."""
        value = self._get(key, {})
        is_flat = isinstance(value, dict) and all(
            isinstance(item, (str, int, float)) for item in value.values()
        )
        if not is_flat:
            self.wrong.append(f"{key} is a table of texts and numbers")
            return {}
        texts = {}
        for name, item in value.items():
            texts[name] = str(item).lower() if isinstance(item, bool) else str(item)
        return texts

    def read_hosts(self, key: str) -> list[str]:
        """A host list as names; the row cannot be read without it."""
        text = self.read_text(key)
        if not text:
            self.fail(f"{key} is empty" if not self.wrong else "")
        try:
            names = expand(text)
        except ValueError as error:
            self.fail(f"{key}: {error}")
        return [self.check_name(name) for name in names]

    def read_hosts_or_none(self, key: str) -> list[str]:
        """A host list that may be left out."""
        if key in self.values:
            return self.read_hosts(key)
        return []

    def read_paired(self, key: str, names: Sequence[str]) -> list[str]:
        """A host list with one entry for each name; empty texts when it is left out."""
        if not self.values.get(key):
            self._read.add(key)
            return [""] * len(names)
        values = self.read_hosts(key)
        if len(values) != len(names):
            self.wrong.append(f"{key} has {len(values)} entries for {len(names)} names")
            return [""] * len(names)
        return values

    def read_spread(self, key: str, names: Sequence[str]) -> list[str]:
        """A host list whose entries each hold the same number of the names, in order."""
        if not self.values.get(key):
            self._read.add(key)
            return [""] * len(names)
        values = self.read_hosts(key)
        if len(names) % len(values):
            self.wrong.append(f"{len(names)} names do not fill {len(values)} {key} evenly")
            return [""] * len(names)
        names_each = len(names) // len(values)
        return [value for value in values for _ in range(names_each)]

    def read_rails(self, names: Sequence[str]) -> list[int | None]:
        """`rail` for all of the names, or `rails` with one number for each."""
        rail = self.read_number_or_none("rail")
        rails = self._get("rails", None)
        if rails is None:
            return [rail] * len(names)
        is_list = isinstance(rails, list) and len(rails) == len(names)
        if not is_list or not all(_is_count(number) for number in rails):
            self.wrong.append(f"rails needs one number for each of {len(names)} switches")
            return [None] * len(names)
        return list(rails)

    def read_gpus(self) -> tuple[GpuPlace, ...]:
        """PCI addresses in index order, or tables with index, pci, uuid, serial."""
        places = []
        for number, value in enumerate(self._read_list("gpus", "each with its PCI address")):
            row = value if isinstance(value, dict) else {"index": number, "pci": value}
            pci = resources.pci_address(str(row.get("pci", "")))
            index = row.get("index", number)
            unknown = set(row) - {"index", "pci", "uuid", "serial"}
            if pci is None or unknown or not _is_count(index):
                self.wrong.append(
                    f"gpus: {value!r} is no GPU: give its PCI address, such as 0000:19:00.0"
                )
                continue
            uuid = str(row.get("uuid", ""))
            serial = str(row.get("serial", ""))
            places.append(GpuPlace(index, pci, uuid, serial))
        for what in ("index", "pci"):
            if len({getattr(place, what) for place in places}) < len(places):
                self.wrong.append(f"gpus: one {what} stands twice")
        return tuple(places)

    def read_nvswitches(self) -> tuple[NvSwitchPlace, ...]:
        """PCI addresses, or tables with pci, uuid, serial."""
        places = []
        for value in self._read_list("nvswitches", "each with its PCI address"):
            row = value if isinstance(value, dict) else {"pci": value}
            pci = resources.pci_address(str(row.get("pci", "")))
            if pci is None or set(row) - {"pci", "uuid", "serial"}:
                self.wrong.append(
                    f"nvswitches: {value!r} is no NVSwitch: give its PCI address, such as"
                    " 0000:07:00.0"
                )
                continue
            uuid = str(row.get("uuid", ""))
            serial = str(row.get("serial", ""))
            places.append(NvSwitchPlace(pci, uuid, serial))
        if len({place.pci for place in places}) < len(places):
            self.wrong.append("nvswitches: one pci stands twice")
        return tuple(places)

    def read_nics(self, names: Sequence[str]) -> list[tuple[NicPlace, ...]]:
        """Of each of the names: device names, or tables. `addresses` in a table has one entry for
        each name."""
        values = self._read_list("nics", "each with its device name")
        read = [self._parse_nic(value, names) for value in values]
        columns = [column for column in read if column is not None]
        if len({column[0].device for column in columns}) < len(columns):
            self.wrong.append("nics: one device stands twice")
        nics_by_name = []
        for number in range(len(names)):
            nics_by_name.append(tuple(column[number] for column in columns))
        return nics_by_name

    def _parse_nic(self, value: object, names: Sequence[str]) -> list[NicPlace] | None:
        row = Row(dict(value) if isinstance(value, dict) else {"device": value})
        device = row.read_text("device")
        pci = resources.pci_address(row.read_text("pci", "")) or ""
        if row.values.get("pci") and not pci:
            row.wrong.append(f"pci {row.values['pci']!r} is no PCI address such as 0000:18:00.0")
        texts = {key: row.read_text(key, "") for key in _NIC_TEXTS}
        texts |= {key: row.read_choice(key, NIC_ROLES, "") for key in ("role", "also")}
        numbers = {key: row.read_number_or_none(key) for key in _NIC_NUMBERS}
        if "addresses" in row.values:
            addresses = row.read_paired("addresses", names)
        else:
            addresses = [texts["address"]] * len(names)
        try:
            row.require_all_read()
        except RowError:
            reasons = "; ".join(row.wrong)
            self.wrong.append(f"nics: {device or value!r} is no NIC such as mlx5_0: {reasons}")
            return None
        texts.pop("address")
        return [NicPlace(device, pci, address=address, **texts, **numbers) for address in addresses]  # type: ignore[arg-type]

    def read_port_names(self, key: str) -> Callable[[int], str]:
        """`{name = "Ethernet{}", first = 0, step = 4}` as the name of the port with a running
        number."""
        value = self._get(key, None)
        if not isinstance(value, dict) or "{}" not in str(value.get("name", "")):
            self.fail(f'{key} is written as {{name = "Ethernet{{}}", first = 0, step = 4}}')
        first = value.get("first", 0)
        step = value.get("step", 1)
        if not _is_whole(first) or not _is_whole(step):
            self.fail(f"{key}: first and step are whole numbers")
        unknown = sorted(set(value) - {"name", "first", "step"})
        if unknown:
            self.fail(f"{key}: unknown key {', '.join(unknown)}")
        name = str(value["name"])
        return lambda number: name.replace("{}", str(first + step * number))

    def require_all_read(self) -> None:
        """Raises everything that was wrong, keys that nobody read included."""
        unread = sorted(set(self.values) - self._read)
        self.wrong += [f"unknown key {key}" for key in unread]
        if self.wrong:
            raise RowError("\n".join(self.wrong))

    def fail(self, reason: str) -> NoReturn:
        """The rest of the row cannot be read."""
        if reason:
            self.wrong.append(reason)
        raise RowError("\n".join(self.wrong))

    def _get(self, key: str, default: Any) -> Any:
        self._read.add(key)
        return self.values.get(key, default)

    def _read_list(self, key: str, entries: str) -> list[Any]:
        value = self._get(key, [])
        if not isinstance(value, list):
            self.wrong.append(f"{key} is a list, {entries}")
            return []
        return value

    def check_name(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            self.wrong.append(
                f"{name!r} is no short host name: lower-case letters, digits, - . _, 64 at most"
            )
        return name


def _is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number. TOML's true is none, though Python counts it."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: object) -> TypeGuard[int]:
    """Whether it is a whole number, 0 or more."""
    return _is_whole(value) and value >= 0


def read_given(row: Row, readers: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Of these keys those that the row has, read."""
    return {key: read() for key, read in readers.items() if key in row.values}
