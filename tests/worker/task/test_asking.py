"""A solitary task has one question at a time for the decider, and puts it until it is answered."""

from headrace.worker.task.core.dedup_client import ASK_AGAIN_S, Asking


def test_a_question_is_put_at_once_and_again_until_it_is_answered() -> None:
    asking = Asking()
    assert not asking.waiting
    number = asking.ask(5.0)
    assert asking.wake_at() == 5.0
    assert asking.due(5.0)
    assert not asking.due(5.0)
    assert asking.wake_at() == 5.0 + ASK_AGAIN_S
    assert asking.due(5.0 + ASK_AGAIN_S)
    assert asking.answered(number)
    assert not asking.waiting
    assert asking.wake_at() is None
    assert not asking.due(60.0)


def test_an_answer_to_an_earlier_question_or_a_second_one_answers_nothing() -> None:
    asking = Asking()
    first = asking.ask(0.0)
    asking.let_go()
    assert not asking.answered(first)
    second = asking.ask(1.0)
    assert not asking.answered(first)
    assert asking.answered(second)
    assert not asking.answered(second)
