"""-v: what steps were asked, what they answered, and why they did not."""

import socket
import threading
from contextlib import suppress
from functools import partial

import pytest

LOADER = """
from torch.utils.data import DataLoader, TensorDataset
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
for x, y in DataLoader(TensorDataset(features, targets), 4):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x), y).backward()
    optimizer.step()
"""


def what_if(printed: str) -> list[str]:
    """Return the rows of what was asked, without the label, a broken line as one."""
    _, _, report = printed.partition(" trainguard ")
    rows = " ".join(line.strip() for line in report.splitlines()).split("what if ")
    return [row.partition(" unjudged ")[0].strip() for row in rows[1:]]


def test_questions_and_answers_are_printed(folder) -> None:
    """A row for each, in order, with the step."""
    folder.trains(before=LOADER, steps=0)
    rows = what_if(folder.run("-v", "train.py").stdout)[:5]
    assert [row.partition(":")[0] for row in rows] == [
        "step 1, nothing edited",
        "step 1, inputs edited (1 of 1 inputs in the opposite order)",
        "step 1, terms unread (where numbers go)",
        "step 1, one batch learned (one batch, 50 steps)",
        "step 1, the same batch again (one batch, 8 steps)",
    ]
    said = [row.partition(": ")[2] for row in rows]
    assert [one.split(",")[0] for one in said[:2]] == ["the same loss", "3 of loss"]
    assert said[2] == "0 of 1 have no place that reads them"
    assert said[3].startswith("its loss falls to")
    assert said[4] == "its loss is higher after 0 of 3 steps"  # those of the lesson before


def test_they_are_not_printed_unasked(folder) -> None:
    """A report without -v is as short as it was."""
    folder.trains()
    assert what_if(folder.run("train.py").stdout) == []


HOOK = """
import ctypes, os, socket, threading
owner = os.getpid()
def act(*_):
    {act}
net.register_forward_hook(act)
"""


@pytest.mark.parametrize(
    ("act", "why"),
    [
        ("open('log', 'a').write('x')", "it opens 'log' for writing"),
        ("os.path.exists('b') and os.remove('b'); open('b', 'w')", "it calls os.remove of 'b'"),
        ("threading.Thread(target=over.wait).start()", "the script has 2 threads"),
        ("os.getpid() != owner and os.abort()", "it was ended by SIGABRT"),
        ("os.getpid() != owner and os._exit(0)", "it ended without an answer"),
        (
            "os.getpid() != owner and ctypes.CDLL(None).kill(os.getpid(), 9)",
            "it was ended by SIGKILL",
        ),
        ("socket.socket(2, 2).sendto(b'x', ('127.0.0.1', 9))", "it calls socket.sendto"),
        ("while os.getpid() != owner: pass", "it took too long"),
        ("net.calls = getattr(net, 'calls', 0) + 1", "the same loss"),
    ],
)
def test_what_is_given_up_is_told_in_a_row(folder, act, why) -> None:
    """The run itself goes on, and ends as it would have ended."""
    once = "over = threading.Event()\n" + HOOK.format(act=act)
    if "Thread" in act:
        once = once.replace("net.register", "act(); #")
    folder.trains(imports="import threading", before=once, after="over.set(); print('the end')")
    run = folder.run("-v", "train.py")
    rows = [row for row in what_if(run.stdout) if "nothing edited" in row]
    assert "the end" in run.stdout
    assert rows
    assert why in rows[0]


def test_a_run_in_which_all_is_given_up(folder) -> None:
    """It ends as it would have ended, and nothing that needs an answer is judged."""
    act = "os.getpid() != owner and os._exit(0)"
    folder.trains(before=HOOK.format(act=act), after="print('the end')", steps=40)
    run = folder.run("-v", "train.py")
    assert "the end" in run.stdout
    asked = [row for row in what_if(run.stdout) if "other rates" not in row]  # the run answers that
    assert {row.partition(": ")[2] for row in asked} == {"given up: it ended without an answer"}
    _, _, unjudged = " ".join(run.stdout.split()).partition("no step could be asked: ")
    assert unjudged.startswith("it ended without an answer: inputs_matter, ")


def test_a_run_for_the_answers_alone(folder) -> None:
    """--what-if hides accelerators, stops after 13 steps and prints what was asked."""
    seen = "import os; print('devices', repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    folder.trains(before=seen, steps=20)
    run = folder.run("--what-if", "train.py")
    assert "devices ''" in run.stdout
    assert "13 steps of" in run.stdout
    assert any("the same loss" in row for row in what_if(run.stdout))


def test_to_ask_and_not_to_ask(folder) -> None:
    """Both options at once mean nothing."""
    folder.trains()
    run = folder.run("--what-if", "--no-probes", "train.py")
    assert run.returncode == 2
    assert "--what-if asks, and --no-probes asks nothing: leave one out." in run.stderr


LOGGERS = '''
import json, queue, socket, threading, time
time.time = lambda: 1e9  # TensorBoard writes it to its files

class Direct:
    """Writes to a file and to a server at once."""

    def __init__(self):
        self.file, self.server = open("log.jsonl", "a"), socket.create_connection({address})

    def write(self, line):
        self.file.write(line)
        self.server.sendall(line.encode())

    def add_scalar(self, name, value, step):
        self.write(json.dumps([name, value, step]) + "\\n")

    def close(self):
        self.file.close()
        self.server.close()

class Threaded(Direct):
    """Has a thread that does so, as wandb has."""

    def __init__(self):
        super().__init__()
        self.jobs = queue.Queue()
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        while job := self.jobs.get():
            super().add_scalar(*job)

    def add_scalar(self, *job):
        self.jobs.put(job)

    def close(self):
        self.jobs.put(None)
        self.thread.join()
        super().close()

def TensorBoard():
    from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter("events")

writer = None

def log(step, loss):
    global writer
    if step == {first}:
        writer = {logger}()
    if writer is not None:
        writer.add_scalar("loss", float(loss), step)
'''


class Server:
    """Takes whatever is sent to it, by the connection that it came with."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.taken: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Leave no thread: no question is asked beside one, in no later test of this process."""
        self.socket.shutdown(socket.SHUT_RDWR)  # which wakes the thread; to close it does not
        self._thread.join()
        self.socket.close()

    def _serve(self) -> None:
        """Read one connection after another."""
        with suppress(OSError):  # where it is ended
            while True:
                connection, _ = self.socket.accept()
                with connection:
                    self.taken.append(b"".join(iter(partial(connection.recv, 4096), b"")))


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("logger", ["Direct", "Threaded", "TensorBoard"])
def test_what_is_logged_is_logged_once(folder, request, logger, first) -> None:
    """A file, a server and TensorBoard get the same bytes with and without questions."""
    if logger == "TensorBoard":
        pytest.importorskip("tensorboard")
    server, written = Server(), []
    request.addfinalizer(server.end)
    address = server.socket.getsockname()
    before = LOGGERS.replace("{address}", str(address)).replace("{logger}", logger)
    folder.trains(
        before=before.replace("{first}", str(first)),
        inside="log(step, loss)",
        after="writer.close()",
        steps=40,
    )
    for option in ("-v", "--no-probes"):
        run = folder.run(option, "train.py")
        files = [*folder.path.glob("log.jsonl"), *folder.path.glob("events/*")]
        written.append([file.read_bytes() for file in files])
        for file in files:
            file.unlink()
        if option == "-v":
            said = next(row for row in what_if(run.stdout) if "nothing edited" in row)
    assert written[0] == written[1]
    assert len(written[0]) == 1
    assert written[0][0].count(b"loss") == 40 - first
    if logger != "TensorBoard":
        assert server.taken == [written[0][0], written[1][0]]
    threads = first == 0 and logger != "Direct"
    assert ("threads" if threads else "the same loss") in said
