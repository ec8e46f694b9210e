"""A solitary task has one question at a time for the decider, and puts it until it is answered."""

from headrace.worker.task.core.task import ASK_AGAIN_S, PendingQuestion


def test_a_question_is_put_at_once_and_again_until_it_is_answered() -> None:
    question = PendingQuestion()
    assert not question.waiting
    number = question.ask(5.0)
    assert question.wake_at() == 5.0
    assert question.due(5.0)
    assert not question.due(5.0)
    assert question.wake_at() == 5.0 + ASK_AGAIN_S
    assert question.due(5.0 + ASK_AGAIN_S)
    assert question.answered(number)
    assert not question.waiting
    assert question.wake_at() is None
    assert not question.due(60.0)


def test_an_answer_to_an_earlier_question_or_a_second_one_answers_nothing() -> None:
    question = PendingQuestion()
    first = question.ask(0.0)
    question.let_go()
    assert not question.answered(first)
    second = question.ask(1.0)
    assert not question.answered(first)
    assert question.answered(second)
    assert not question.answered(second)
