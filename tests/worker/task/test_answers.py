"""How a decider answers: what was asked before its link to the asking task stood is answered when it does."""

from typing import Any

from headrace.transport.core import Frame
from headrace.worker.task.consultation import ANSWERS_MAX, Answers


class Link:
    """A link with room for so many frames."""

    def __init__(self, room: int = 100) -> None:
        self.room, self.sent = room, list[bytes]()

    def try_send(self, frame: Frame) -> bool:
        if len(self.sent) == self.room:
            return False
        self.sent.append(bytes(frame.body))
        return True


def cut(link: str, reason: str) -> None:
    raise AssertionError(f"{link} was cut: {reason}")


def opened(answers: Answers, link: Any, asking_task: str = "read.0") -> None:
    answers.open(asking_task, f"decider->{asking_task}", link)


def test_an_answer_that_comes_before_its_link_is_sent_on_it() -> None:
    answers, link = Answers(1, cut), Link()
    answers.put("read.0", b"first")
    answers.put("read.1", b"of another")
    opened(answers, link)
    answers.put("read.0", b"second")
    assert link.sent == [b"first", b"second"]


def test_an_answer_made_without_a_link_is_sent_on_the_next() -> None:
    answers, old, new = Answers(1, cut), Link(), Link()
    opened(answers, old)
    answers.close("decider->read.0")
    answers.put("read.0", b"answer")
    assert old.sent == []
    opened(answers, new)
    assert new.sent == [b"answer"]


def test_answers_for_an_asker_that_is_gone_hold_up_no_other() -> None:
    answers, link = Answers(1, cut), Link()
    for number in range(3 * ANSWERS_MAX):
        answers.put("read.0", b"%d" % number)
    assert not answers.unsent
    opened(answers, link)
    assert link.sent == [b"%d" % number for number in range(2 * ANSWERS_MAX, 3 * ANSWERS_MAX)]


def test_no_question_is_taken_while_answers_wait_for_room() -> None:
    answers, link = Answers(1, cut), Link(room=0)
    opened(answers, link)
    for _ in range(ANSWERS_MAX):
        assert not answers.unsent
        answers.put("read.0", b"answer")
    assert answers.unsent
    link.room = ANSWERS_MAX
    assert answers.flush()
    assert not answers.unsent
