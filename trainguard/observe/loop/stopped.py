"""What ends a training that need not go on."""


class Stopped(BaseException):
    """Raised inside the user's code once enough was seen, so that `finally` blocks run."""
