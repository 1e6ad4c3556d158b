"""The one short question: to whom, in which form, when the next one, and what an answer comes to.

An answer is never judged by itself. It waits for a reading that began after it, with the pause signs, and only that
reading settles it: a server that is paused, or that moved meanwhile, has not failed.
"""

from __future__ import annotations

from factory_watchdog.core.memory import Asking, Engine, Memory, Own, Settled, replace
from factory_watchdog.core.model import Answer, Form, Outcome, Purpose, Question, Reading, Settings
from factory_watchdog.core.observe import OWN_READINGS, pause_sign

LONGEST_SPACING = 300.0
"""Seconds between two questions to a backend that stays quiet: one token every five minutes costs nothing, and a wedge
while idle is still seen before the next user has waited long."""


def ask(
    memory: Memory, settings: Settings, purpose: Purpose, engine: str | None, now: float
) -> tuple[Memory, Question]:
    """Send one question: to `engine`, or to the next in turn where None."""
    asking = memory.asking
    names = [e.sample.engine for e in memory.engines]
    if engine is None and names:
        engine = _next_engine(memory)
    form = asking.form if asking.form in settings.forms else settings.forms[0]
    question = Question(asking.next_id, form, engine, settings.pinnable and len(names) > 1, purpose, now)
    engines = tuple(
        replace(e, ours=e.ours + 1, users=e.users if e.ours else e.requests or 0.0) if e.sample.engine == engine else e
        for e in memory.engines
    )
    asking = replace(
        asking, next_id=asking.next_id + 1, question=question, answer=None, settled=None, turn=asking.turn + 1
    )
    return replace(memory, engines=engines, asking=asking), question


def _next_engine(memory: Memory) -> str:
    """The engine that failed longest ago goes first; otherwise they take turns."""
    failing = [e for e in memory.engines if e.failing_since is not None]
    if failing:
        return min(failing, key=lambda e: e.failing_since or 0.0).sample.engine
    return memory.engines[memory.asking.turn % len(memory.engines)].sample.engine


def receive(memory: Memory, answer: Answer) -> Memory:
    """Keep an answer until a fresh reading settles it; one that nobody waits for is dropped."""
    asking = memory.asking
    if asking.question is None or asking.question.id != answer.question:
        return memory
    if asking.void == answer.question:
        return replace(memory, asking=replace(asking, question=None, answer=None, last_ended=answer.ended))
    engines = memory.engines
    if answer.outcome is Outcome.ANSWERED:
        tokens = float(max(answer.completion_tokens, 0))
        own = Own(max(tokens, 1.0), float(max(answer.prompt_tokens, 0)), tokens, 1.0, OWN_READINGS)
        engines = tuple(replace(e, own=own) if e.sample.engine == asking.question.engine else e for e in memory.engines)
    return replace(memory, engines=engines, asking=replace(asking, answer=answer, last_ended=answer.ended))


def settle(memory: Memory, reading: Reading, settings: Settings) -> Memory:
    """What a waiting answer comes to by this reading; `asking.settled` is None where there is nothing to settle."""
    asking = memory.asking
    question, answer = asking.question, asking.answer
    if question is None or answer is None or not _settles(memory, reading, question, answer, settings):
        return memory if asking.settled is None else replace(memory, asking=replace(asking, settled=None))
    outcome = _worth(memory, reading, question, answer)
    memory = _book(memory, question, outcome)
    asking = _schedule(memory.asking, settings, question, answer, outcome, reading.ended)
    life = memory.life
    if outcome is Settled.ANSWERED and not (life.answered and life.up and life.outcome):
        memory = replace(memory, life=replace(life, answered=True, up=True, outcome=True), down_since=None)
    return replace(memory, asking=asking)


def _settles(memory: Memory, reading: Reading, question: Question, answer: Answer, settings: Settings) -> bool:
    """Whether this reading is fresh and tells enough: an unreadable one only delays, unless that is all there is.

    An answer that no counter of the engine shows yet waits for another reading: it may be booked a moment later.
    """
    if reading.began < answer.ended:
        return False
    if not reading.readable:
        silent = memory.refused > 0 or memory.silent_since is not None
        return settings.ask_without_metrics or not memory.life.up or silent
    if answer.outcome is not Outcome.ANSWERED or _booked(memory, question):
        return True
    return reading.began - answer.ended >= settings.interval / 2


def _worth(memory: Memory, reading: Reading, question: Question, answer: Answer) -> Settled:
    if answer.outcome is Outcome.ANSWERED:
        return Settled.ANSWERED if _booked(memory, question) else Settled.ELSEWHERE
    if pause_sign(reading) is not None:
        return Settled.DROPPED
    if answer.outcome is Outcome.DENIED:
        return Settled.UNASKABLE
    if answer.outcome is Outcome.CANNOT or (answer.outcome is Outcome.SERVER_ERROR and not memory.life.answered):
        return Settled.CANNOT
    if any(_moved_since(e, question.sent) for e in memory.engines if _concerns(e, question, answer)):
        return Settled.DROPPED
    return Settled.FAILED


def _concerns(engine: Engine, question: Question, answer: Answer) -> bool:
    """Movement of the engine asked excuses a failure; of any engine, a server that says "not now"."""
    return answer.outcome is Outcome.NOT_NOW or question.engine in (None, engine.sample.engine)


def _moved_since(engine: Engine, then: float) -> bool:
    return engine.moved_at is not None and engine.moved_at > then


def _booked(memory: Memory, question: Question) -> bool:
    """With several engines an answer speaks only for the one whose own counters moved: not every release pins."""
    if len(memory.engines) < 2:
        return True
    return any(
        e.sample.engine == question.engine and e.booked_at is not None and e.booked_at > question.sent
        for e in memory.engines
    )


def _book(memory: Memory, question: Question, outcome: Settled) -> Memory:
    """Count a failure, or end the count, for the engine that was asked."""
    if outcome is Settled.FAILED:
        engines = tuple(
            replace(
                e,
                failures=e.failures + 1,
                failing_since=e.failing_since if e.failing_since is not None else question.sent,
            )
            if e.sample.engine == question.engine
            else e
            for e in memory.engines
        )
    elif outcome is Settled.ANSWERED:
        engines = tuple(
            replace(e, failures=0, failing_since=None, ours=max(0, e.ours - 1))
            if e.sample.engine == question.engine
            else e
            for e in memory.engines
        )
    else:
        return memory
    return replace(memory, engines=engines)


def _schedule(
    asking: Asking, settings: Settings, question: Question, answer: Answer, outcome: Settled, now: float
) -> Asking:
    """The state of asking after a question was settled: the next form, the next time, the errors in a row."""
    longest = max(LONGEST_SPACING, settings.question_every)
    errors = asking.errors + 1 if outcome is Settled.FAILED and answer.outcome is Outcome.SERVER_ERROR else 0
    asking = replace(
        asking,
        question=None,
        answer=None,
        settled=outcome,
        settled_question=question,
        settled_answer=answer,
        last=outcome,
        errors=errors,
    )
    if outcome is Settled.CANNOT:
        following = _next_form(asking, settings, question.form, answer.next_form)
        if following is not None:
            return replace(asking, form=following, tried=(*asking.tried, question.form), due=now)
        outcome = Settled.UNASKABLE
    if outcome is Settled.UNASKABLE:
        return replace(
            asking,
            settled=outcome,
            last=outcome,
            form=None,
            tried=(),
            due=now + longest,
            complaint=answer.detail or answer.outcome.value,
        )
    if outcome is Settled.ANSWERED:
        spacing = min(2 * max(asking.spacing, settings.question_every), longest)
        return replace(asking, form=question.form, tried=(), complaint=None, spacing=spacing, due=now + spacing)
    return replace(asking, due=now + settings.question_every)


def _next_form(asking: Asking, settings: Settings, failed: Form, named: Form | None) -> Form | None:
    """The next form to try: the one that the answer names, or the next in order; None when all were tried."""
    tried = {*asking.tried, failed}
    if named is not None and named not in tried:
        return named
    untried = (f for f in settings.forms if f not in tried and f is not Form.CHAT_COMPLETION_TOKENS)
    return next(untried, None)
