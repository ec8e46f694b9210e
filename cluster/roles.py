"""The roles of those who have certificates. Whoever names one needs no library of certificates."""

from enum import Enum


class Role(Enum):
    """What the holder of a certificate is."""

    CONTROLLER = "controller"
    WORKER = "worker"
    #: A person who may ask for anything; who applies pipelines, and changes those; who looks.
    OPERATOR = "operator"
    USER = "user"
    VIEWER = "viewer"


#: The roles of people; the first is the default.
PEOPLE = (Role.OPERATOR, Role.USER, Role.VIEWER)
