"""What a person answers to a run: the form on the run's page, and where it goes."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from runbooks import questions
from runbooks.models import Question
from runbooks.outcomes import ControlRefused


def answer_view(request: HttpRequest, question_id: int) -> HttpResponse:
    """One of the words that the question gives; the first answer stands."""
    if not request.user.has_perm("runbooks.control_run"):
        raise PermissionDenied
    row = Question.objects.filter(pk=question_id).first()
    if row is None:
        raise Http404
    words = request.POST.get("answer", "")
    outcome = questions.answer(
        question_id, words, actor=request.user.get_username(), now=timezone.now()
    )
    if isinstance(outcome, ControlRefused):
        messages.error(request, outcome.reason)
    else:
        messages.success(request, outcome.text)
    return HttpResponseRedirect(reverse("admin:runbooks_run_change", args=[row.run_id]))
