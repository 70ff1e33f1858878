"""What ends a training that need not go on."""


class Stopped(BaseException):
    """
    Raised inside the user's code once enough was seen, so that `finally` blocks run.

    place: where that was, if its time was over: "train.py:41".
    """

    place = ""
