"""Finds the detectors of a package: a class with the detectors' contract in a module of it is one,
and nothing is listed anywhere.

Python 3.9, standard library alone: the node check finds its own detectors so.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from detectors.detector import Detector, TargetKind

_CONTRACT = ("name", "kind", "every", "keeps", "wants", "collect", "parse", "compare", "sniff")


class DiscoveryError(Exception):
    """Two detectors of one name: says which classes."""


def list_node_detectors(package: ModuleType) -> tuple[Detector, ...]:
    """One of each class that looks at nodes, sub-packages included, in the order of their modules.

    A class counts in the module that defines it; one whose name begins with an underscore is a
    base of others. Raises DiscoveryError.
    """
    found: dict[str, Detector] = {}
    for module in iterate_modules(package):
        for detector in _list_detectors(module):
            other = found.setdefault(detector.name, detector)
            if other is not detector:
                raise DiscoveryError(
                    f"{type(other).__qualname__} and {type(detector).__qualname__} are both named"
                    f" {detector.name}"
                )
    return tuple(found.values())


def iterate_modules(package: ModuleType) -> Iterator[ModuleType]:
    """Every module below the package, imported, by name."""
    below = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    for name in sorted(found.name for found in below):
        if not name.endswith(".__main__"):
            yield importlib.import_module(name)


def _list_detectors(module: ModuleType) -> Iterator[Detector]:
    """In the order in which the module defines them."""
    for value in vars(module).values():
        if _is_detector(value, module):
            yield value()


def _is_detector(value: Any, module: ModuleType) -> bool:
    if not inspect.isclass(value) or value.__module__ != module.__name__:
        return False
    if value.__name__.startswith("_"):
        return False
    keeps_the_contract = all(hasattr(value, part) for part in _CONTRACT)
    return keeps_the_contract and value.kind is TargetKind.NODE
