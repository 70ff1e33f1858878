"""Run as a module: torch.distributed.run, which tells in a sentence of a process that failed."""

import os
import signal
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from trainguard.observe.tools.devices import count_hideable, share_out


def main(processes: int, words: list[str]) -> None:
    """Start the processes, and wait for them; what failed in them they have told themselves."""
    shared, told = share_out(processes, count_hideable(), os.environ)
    os.environ.update(shared)
    if told:
        sys.stderr.write(f"trainguard: {told}\n")
    words = [f"--nproc-per-node={processes}", *words]
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
    main(int(sys.argv[1]), sys.argv[2:])
