"""`manage.py answer [QUESTION WORDS]`: what runs ask people, and the answer to one of them."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import QuerySet
from django.utils import timezone

from kintsugi.management.person import add_actor
from kintsugi.management.store import StoreCommand
from runbooks import answer_words
from runbooks.models import UNFINISHED, Question
from runbooks.outcomes import ControlRefused


class Command(StoreCommand):
    help = (
        "Lists the questions of runs that nobody has answered, or answers one"
        " (docs/reference/steps.md)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "question", nargs="?", type=int, help="its number; without it, all that wait are listed"
        )
        parser.add_argument("words", nargs="?", help="the answer, one of those that are listed")
        add_actor(parser, "who answers, for the record")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["question"] is None:
            lines = [_format_question(question) for question in _get_open_questions()]
            self.stdout.write("\n".join(lines) or "None.")
            return
        self.require_serving()
        from runbooks import questions  # noqa: PLC0415  (what writes: the list needs none of it)

        words, actor = options["words"] or "", options["actor"]
        outcome = questions.answer(options["question"], words, actor=actor, now=timezone.now())
        if isinstance(outcome, ControlRefused):
            raise CommandError(outcome.reason)
        self.stdout.write(outcome.text)


def _get_open_questions() -> QuerySet[Question]:
    questions = Question.objects.filter(answered_at=None, run__state__in=UNFINISHED)
    return questions.select_related("run__node").order_by("pk")


def _format_question(question: Question) -> str:
    ways = " | ".join(answer_words.get_ways(question))
    return f"{question.pk}  {question.run}: {question.text} ({ways})"
