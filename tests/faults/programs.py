"""Programs that do what programs do, and how they end: each after the same head."""

HEAD = """
import asyncio, contextlib, gc, io, logging, multiprocessing, os, random, signal, sys, threading
import time, warnings, weakref
import torch
from torch import nn
from torch.nn import functional as F
torch.set_num_threads(1)

def train(seed=0, steps=12, say=True):
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / 3)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for step in range(steps):
        x = torch.randn(16, 6, generator=generator)
        loss = F.mse_loss(net(x), x.sum(1, keepdim=True))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    if say:
        print("loss", repr(loss.item()))
    return loss.item()
"""
# Each prints what it has computed; `trainguard run` has to let it print the same.
SAME = {
    "plain": "train()",
    "twice": "train(); train(1)",
    "threads": """
found = {}
ts = [threading.Thread(target=lambda i=i: found.update({i: train(i, say=False)})) for i in range(4)]
[t.start() for t in ts]; [t.join() for t in ts]
print(sorted(found.items()))""",
    "a daemon that goes on": """
threading.Thread(target=lambda: [time.sleep(0.01) for _ in range(10**6)], daemon=True).start()
train()""",
    "a pool of threads": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(3) as pool:
    print(list(pool.map(lambda i: train(i, 6, False), range(6))))""",
    "a thread that is not joined": "threading.Thread(target=train).start()",
    "asyncio": """
async def one(i):
    await asyncio.sleep(0); value = train(i, say=False); await asyncio.sleep(0); return value
async def main():
    print(await asyncio.gather(*[one(i) for i in range(4)]))
asyncio.run(main())""",
    "asyncio in threads": """
async def main():
    print(await asyncio.gather(*[asyncio.to_thread(train, i, 6, False) for i in range(3)]))
asyncio.run(main())""",
    "fork": """
sys.stdout.flush()
if not os.fork():
    train(1); sys.stdout.flush(); os._exit(0)
os.wait(); train()""",
    "forked twice": """
train()
sys.stdout.flush()
for i in range(2):
    if not os.fork():
        train(i); sys.stdout.flush(); os._exit(0)
    os.wait()""",
    "multiprocessing fork": """
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(abs, range(-4, 4)))
    train()""",
    "multiprocessing spawn": """
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(abs, range(-4, 4)))
    train()""",
    "loader with workers": """
if __name__ == "__main__":
    data = torch.utils.data.TensorDataset(torch.arange(32.0))
    print([b[0].sum().item() for b in torch.utils.data.DataLoader(data, 8, num_workers=2)])
    train()""",
    "SIGALRM": """
signal.signal(signal.SIGALRM, lambda *_: print("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(0.05); train()""",
    "SIGUSR1": """
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
os.kill(os.getpid(), signal.SIGUSR1); train(); print(seen)""",
    "SIGCHLD": """
signal.signal(signal.SIGCHLD, lambda *_: None); train()
print(signal.getsignal(signal.SIGCHLD) is not None)""",
    "own handler of SIGTERM": """
signal.signal(signal.SIGTERM, lambda *_: print("terminated")); train()
os.kill(os.getpid(), signal.SIGTERM)""",
    "own handler of SIGINT": """
signal.signal(signal.SIGINT, lambda *_: print("interrupted"))
os.kill(os.getpid(), signal.SIGINT); train()""",
    "closed stdin": "os.close(0); train()",
    "stdout elsewhere": """
with contextlib.redirect_stdout(io.StringIO()) as kept: train()
print(kept.getvalue())""",
    "stdout replaced": """
class Out:
    def write(self, text): sys.__stdout__.write(text.upper())
    def flush(self): sys.__stdout__.flush()
sys.stdout = Out(); train()""",
    "stdout without methods": "sys.stdout = None; train(); sys.stdout = sys.__stdout__; print(1)",
    "stderr closed": "sys.stderr.close(); train()",
    "stdout deleted": "train(); sys.stdout.flush(); del sys.stdout",
    "binary output": "train(); sys.stdout.flush(); sys.stdout.buffer.write(b'\\xff\\xfe\\n')",
    "no recursion left": "sys.setrecursionlimit(120); train(steps=1)",
    "warnings are errors": "warnings.simplefilter('error'); train()",
    "a hook of exit": "import atexit; atexit.register(lambda: print('bye')); train()",
    "a hook of exceptions": "sys.excepthook = lambda *_: print('hook'); train()",
    "a trace function": "sys.settrace(lambda *_: None); train(); sys.settrace(None)",
    "a profile function": "sys.setprofile(lambda *_: None); train(); sys.setprofile(None)",
    "no garbage collection": "gc.disable(); train(); print(gc.isenabled())",
    "another folder": "os.chdir('/'); train(); print(os.getcwd())",
    "no environment": "os.environ.clear(); train()",
    "its own arguments": "print(sys.argv[1:], __name__, os.path.basename(__file__)); train()",
    "modules removed": "train(); [sys.modules.pop(n) for n in list(sys.modules) if 'guard' in n]",
    "time stands still": "time.time = lambda: 0.0; time.perf_counter = lambda: 0.0; train()",
    "random numbers": """
random.seed(0); print(random.random()); train(); torch.manual_seed(1); print(torch.rand(2))""",
    "double": "torch.set_default_dtype(torch.float64); train()",
    "deterministic": "torch.use_deterministic_algorithms(True); train()",
    "inference": """
train()
with torch.inference_mode(): print(nn.Linear(2, 2).weight.sum().shape)""",
    "meta": "m = nn.Linear(3, 3, device='meta'); m(torch.empty(2, 3, device='meta')); train()",
    "torch.func": """
net = nn.Linear(3, 1)
f = lambda p, x: torch.func.functional_call(net, p, x).square().mean()
g = torch.func.grad(f)(dict(net.named_parameters()), torch.ones(2, 3))
print(sorted(g)); train()""",
    "vmap": "print(torch.func.vmap(lambda x: F.mse_loss(x, x * 2))(torch.ones(3, 2))); train()",
    "saved whole": """
net = nn.Linear(2, 2); net.loss = F.mse_loss; file = io.BytesIO(); torch.save(net, file)
file.seek(0); print(torch.load(file, weights_only=False).loss is F.mse_loss); train()""",
    "a module with slots": """
class Slotted(nn.Linear):
    def __getattr__(self, name):
        if name.startswith('_trainguard'): raise RuntimeError(name)
        return super().__getattr__(name)
    def __eq__(self, other): raise RuntimeError('equal')
    __hash__ = nn.Linear.__hash__
net = Slotted(3, 1); o = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    o.zero_grad(); net(torch.ones(2, 3)).square().mean().backward(); o.step()
train()""",
    "a module that counts": """
class Counts(nn.Linear):
    calls = 0
    def forward(self, x): Counts.calls += 1; return super().forward(x)
net = Counts(3, 1); o = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(8):
    o.zero_grad(); net(torch.ones(2, 3)).square().mean().backward(); o.step()
print(Counts.calls); train()""",
    "its own generator": """
R = random.Random(0)
class Net(nn.Linear):
    def forward(self, x): return super().forward(x) * (1 + 0.1 * R.random())
net = Net(3, 1); nn.init.ones_(net.weight); nn.init.ones_(net.bias)
o = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(9):
    o.zero_grad(); loss = F.mse_loss(net(torch.ones(4, 3)), torch.zeros(4, 1)); loss.backward()
    o.step(); print(repr(loss.item()))""",
    "weak references": """
net = nn.Linear(3, 1); gone = weakref.ref(net); net(torch.ones(2, 3)).sum().backward(); del net
gc.collect(); train(); gc.collect(); print(gone() is None)""",
    "an optimizer of its own": """
class Own(torch.optim.Optimizer):
    def __init__(self, ps): super().__init__(ps, {})
    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in g['params']: p -= 0.01 * p.grad
net = nn.Linear(3, 1); nn.init.ones_(net.weight); nn.init.ones_(net.bias); o = Own(net.parameters())
for _ in range(5):
    o.zero_grad(); loss = net(torch.ones(2, 3)).square().mean(); loss.backward(); o.step()
print(repr(loss.item()))""",
    "LBFGS": """
w = torch.ones(3, requires_grad=True); o = torch.optim.LBFGS([w])
def closure(): o.zero_grad(); l = (w * torch.arange(3.0)).square().sum(); l.backward(); return l
for _ in range(3): print(repr(o.step(closure).item()))""",
    "retain graph": """
w = torch.ones(3, requires_grad=True); l = w.square().sum()
l.backward(retain_graph=True); l.backward(); print(w.grad.tolist()); train()""",
    "graphs inside of graphs": """
w = torch.ones(3, requires_grad=True)
g, = torch.autograd.grad(w.pow(3).sum(), w, create_graph=True)
g.sum().backward(); print(w.grad.tolist()); train()""",
    "recordings that overlap": """
import trainguard as tg
a, b = tg.record('a'), tg.record('b')
with contextlib.suppress(Exception):
    a.__enter__(); b.__enter__(); train()
for each in (a, b):
    with contextlib.suppress(Exception): each.__exit__(None, None, None)
train(1)""",
    "recordings in threads": """
import trainguard as tg
def recorded(i):
    with contextlib.suppress(Exception):
        with tg.record(str(i)): pass
ts = [threading.Thread(target=recorded, args=(i,)) for i in range(3)]
[t.start() for t in ts]; [t.join() for t in ts]; train()""",
    "logging": "logging.basicConfig(level=0); train(); logging.info('done')",
}
# Each ends as it does without us: with a code, or by a signal, and what it is told is no pass.
ENDS = {
    "exit 0": "train(); sys.exit(0)",
    "exit 7": "train(); sys.exit(7)",
    "exit with words": "train(); sys.exit('no data')",
    "raises": "train(); 1 / 0",
    "raises in a thread": "threading.Thread(target=lambda: 1 / 0).start(); train()",
    "os._exit": "train(); os._exit(0)",
    "os.abort": "train(); os.abort()",
    "SIGKILL": "train(); os.kill(os.getpid(), signal.SIGKILL)",
    "SIGTERM": "train(); os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)",
    "SIGSEGV": "train(); os.kill(os.getpid(), signal.SIGSEGV)",
    "KeyboardInterrupt": "train(); raise KeyboardInterrupt",
    "GeneratorExit": "train(); raise GeneratorExit",
    "an exception without words": """
class E(Exception):
    def __str__(self): 1 / 0
train(); raise E""",
    "a deep recursion": "train()\ndef f(): f()\nf()",
    "out of memory": "train(); raise MemoryError",
    "no program": "train(",
    "nul bytes": "train()\\x00",
    "execv": """
train(); sys.stdout.flush()
os.execv(sys.executable, [sys.executable, '-c', 'print(1)'])""",
    "stdout closed": "train(); sys.stdout.close()",
    "descriptors closed": "train(); sys.stdout.flush(); os.closerange(0, 99)",
}
