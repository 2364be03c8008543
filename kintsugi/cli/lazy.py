"""A verb whose module is imported when the verb is chosen, not when `kintsugi` starts."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperCommand

from kintsugi.cli import site
from kintsugi.cli.grammar import Needs, Verb

_PASSING_ON = {"ignore_unknown_options": True, "allow_extra_args": True}


class LazyVerb(TyperCommand):
    """Stands in the list of verbs with its name and help; makes the real command when it is
    called."""

    def __init__(self, verb: Verb) -> None:
        super().__init__(verb.words[-1], help=verb.help, rich_markup_mode=None)
        self.verb = verb

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        return self.load().make_context(info_name, args, parent, **extra)

    def load(self) -> TyperCommand:
        """The command itself. Raises ImproperlyConfigured where it needs settings that are
        wrong."""
        if self.verb.needs is not Needs.NOTHING:
            site.set_up(self.verb)
        if self.verb.manage:
            return _build_forwarding_command(self.verb)
        module_name, _, function_name = self.verb.function.partition(":")
        function = getattr(importlib.import_module(module_name), function_name)
        if self.verb.passes_on:
            return _build_command(self.verb, function, is_passing_on=True)
        return _build_command(
            self.verb, site.require_site(self.verb, function), is_passing_on=False
        )


def _build_forwarding_command(verb: Verb) -> TyperCommand:
    """All words go to the management command, whose own parser reads and explains them."""
    management = importlib.import_module("kintsugi.cli.management")

    def run(context: typer.Context) -> None:
        management.run(verb, context.args)

    return _build_command(verb, run, is_passing_on=True)


def _build_command(verb: Verb, function: Any, *, is_passing_on: bool) -> TyperCommand:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    text = f"{verb.help[0].upper()}{verb.help[1:]}."
    register = app.command(
        verb.words[-1],
        help=text,
        add_help_option=not is_passing_on,
        context_settings=_PASSING_ON if is_passing_on else None,
    )
    register(function)
    command = typer.main.get_command(app)
    if not isinstance(command, TyperCommand):
        raise TypeError(f"{' '.join(verb.words)} is a group")
    return command
