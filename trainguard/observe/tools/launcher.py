"""Run as a module: torch.distributed.run, which tells in one sentence of a process that failed."""

import signal
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main(words: list[str]) -> None:
    """Start the processes, and wait for them; what failed in them they have told themselves."""
    try:
        run.main(words)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = failure.exitcode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        sys.exit(f"rank {rank} {how}, before any other process failed.")
    except SignalException as stopped:
        sys.exit(128 + stopped.sigval)


if __name__ == "__main__":
    main(sys.argv[1:])
