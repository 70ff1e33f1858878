"""Programs that look at what we put in their way, each after the head of `programs`."""

# As in `programs.SAME`: each prints what it has computed, and has to print the same.
MORE = {
    "thread locals and events": """
ready = threading.Event(); out = []
def work():
    ready.wait(); out.append(train(3, 6, False))
t = threading.Thread(target=work); t.start(); ready.set(); train(1); t.join(); print(out)""",
    "threads count": """
train(); print(threading.active_count(), [t.name for t in threading.enumerate()])""",
    "generator closed late": """
def steps():
    net = nn.Linear(2, 1); nn.init.ones_(net.weight); nn.init.ones_(net.bias)
    o = torch.optim.SGD(net.parameters(), lr=0.1)
    try:
        while True:
            o.zero_grad(); l = net(torch.ones(3, 2)).square().mean(); l.backward(); o.step()
            yield l.item()
    finally: print('finally')
g = steps(); print([next(g) for _ in range(5)]); KEPT = g""",
    "fork in the middle": """
net = nn.Linear(2, 1); nn.init.ones_(net.weight); nn.init.ones_(net.bias)
o = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(6):
    o.zero_grad(); l = net(torch.ones(3, 2)).square().mean(); l.backward(); o.step()
    if i == 3:
        sys.stdout.flush()
        if not os.fork():
            o.zero_grad(); l = net(torch.ones(3, 2)).square().mean(); l.backward(); o.step()
            print('child', l.item(), flush=True); os._exit(0)
        os.wait()
print(l.item())""",
    "signal wakeup": """
import signal
r, w = os.pipe(); os.set_blocking(w, False); signal.set_wakeup_fd(w)
signal.signal(signal.SIGUSR2, lambda *_: None)
train(steps=3); os.kill(os.getpid(), signal.SIGUSR2); print(len(os.read(r, 10)))""",
    "patched linear": """
old = F.linear; n = [0]
def mine(*a, **k): n[0] += 1; return old(*a, **k)
F.linear = mine; train(); F.linear = old; print(n)""",
    "patched backward": """
old = torch.Tensor.backward; n = [0]
def mine(self, *a, **k): n[0] += 1; return old(self, *a, **k)
torch.Tensor.backward = mine; train(); torch.Tensor.backward = old; print(n)""",
    "patched call": """
old = nn.Module.__call__; n = [0]
def mine(self, *a, **k): n[0] += 1; return old(self, *a, **k)
nn.Module.__call__ = mine; train(); nn.Module.__call__ = old; print(n)""",
    "patched mse": """
old = F.mse_loss; n = [0]
def mine(*a, **k): n[0] += 1; return old(*a, **k)
F.mse_loss = mine; train(); F.mse_loss = old; print(n, F.mse_loss is old)""",
    "patched item": """
old = torch.Tensor.item; n = [0]
def mine(self): n[0] += 1; return old(self)
torch.Tensor.item = mine; train(); torch.Tensor.item = old; print(n)""",
    "tensor subclass": """
class T(torch.Tensor):
    calls = []
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        T.calls.append(getattr(func, '__name__', str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})
net = nn.Linear(2, 1); nn.init.ones_(net.weight); nn.init.ones_(net.bias)
o = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    x = torch.ones(3, 2).as_subclass(T); o.zero_grad(); l = net(x).square().mean(); l.backward()
    o.step()
print(l.item(), len(T.calls), T.calls[:40])""",
    "parameter subclass": """
class P(nn.Parameter):
    seen = []
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        P.seen.append(getattr(func, '__name__', str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})
w = P(torch.ones(2, 1)); o = torch.optim.SGD([w], lr=0.1)
for _ in range(5):
    o.zero_grad(); l = (torch.ones(3, 2) @ w).square().mean(); l.backward(); o.step()
print(l.item(), len(P.seen), P.seen)""",
    "dispatch mode": """
from torch.utils._python_dispatch import TorchDispatchMode
class Count(TorchDispatchMode):
    n = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        Count.n += 1; return func(*args, **(kwargs or {}))
with Count(): train()
print(Count.n)""",
    "function mode": """
from torch.overrides import TorchFunctionMode
class Count(TorchFunctionMode):
    n = 0
    def __torch_function__(self, func, types, args=(), kwargs=None):
        Count.n += 1; return func(*args, **(kwargs or {}))
with Count(): train()
print(Count.n)""",
    "loader workers that train": """
class D(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor(train(i, 2, False))
if __name__ == '__main__':
    print([b.tolist() for b in torch.utils.data.DataLoader(D(), 4, num_workers=2)]); train()""",
    "deep module": """
class Deep(nn.Module):
    def __init__(self, n): super().__init__(); self.inner = Deep(n - 1) if n else nn.Linear(2, 1)
    def forward(self, x): return self.inner(x)
net = Deep(60); o = torch.optim.SGD(net.parameters(), lr=0.1)
with torch.no_grad(): [p.fill_(1) for p in net.parameters()]
for _ in range(5): o.zero_grad(); l = net(torch.ones(3, 2)).square().mean(); l.backward(); o.step()
print(l.item())""",
    "recursion to the limit": """
net = nn.Linear(2, 1); nn.init.ones_(net.weight); nn.init.ones_(net.bias)
def depth(n):
    try: return depth(n + 1)
    except RecursionError: return n
a = depth(0); train(); b = depth(0); print(a == b)""",
    "module whose attributes raise": """
class Odd(nn.Module):
    def __init__(self):
        super().__init__(); self.a = nn.Linear(2, 1); nn.init.ones_(self.a.weight)
        nn.init.ones_(self.a.bias)
    @property
    def weight(self): raise KeyError('weight')
    @property
    def __wrapped__(self): raise OSError('wrapped')
    def __len__(self): raise ValueError('len')
    def __bool__(self): raise ValueError('bool')
    def __repr__(self): raise ValueError('repr')
    def __getattr__(self, name):
        if name in ('a',): return super().__getattr__(name)
        raise ZeroDivisionError(name)
    def forward(self, x): return self._modules['a'](x)
net = Odd(); o = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(8):
    o.zero_grad(); l = net(torch.ones(3, 2)).square().mean(); l.backward(); o.step()
print(l.item())""",
    "properties with effects": """
class Odd(nn.Module):
    reads = 0
    def __init__(self):
        super().__init__(); self.a = nn.Linear(2, 1); nn.init.ones_(self.a.weight)
        nn.init.ones_(self.a.bias)
    @property
    def expensive(self): Odd.reads += 1; return torch.rand(1)
    def forward(self, x): return self.a(x)
torch.manual_seed(0); net = Odd(); o = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(8):
    o.zero_grad(); l = net(torch.ones(3, 2)).square().mean(); l.backward(); o.step()
net.eval()
with torch.no_grad(): net(torch.ones(3, 2))
print(l.item(), Odd.reads, torch.rand(1))""",
    "many parameters": """
ws = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(3000)])
o = torch.optim.SGD(ws.parameters(), lr=0.01)
for _ in range(4): o.zero_grad(); l = torch.stack(list(ws)).square().mean(); l.backward(); o.step()
print(l.item())""",
    "eq raises or is tensor": """
class Batch:
    def __init__(self, x): self.x = x
    def __eq__(self, other): raise RuntimeError('eq')
    __hash__ = None
    def __len__(self): raise RuntimeError('len')
    def __iter__(self): raise RuntimeError('iter')
class Dt(dict):
    def __eq__(self, other): return torch.zeros(3) == torch.zeros(3)
class N(nn.Module):
    def __init__(self):
        super().__init__(); self.l = nn.Linear(2, 1); nn.init.ones_(self.l.weight)
        nn.init.ones_(self.l.bias)
    def forward(self, b, opts): return Dt(out=self.l(b.x))
net = N(); o = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(12):
    o.zero_grad(); l = net(Batch(torch.ones(3, 2)), opts=Dt(a=1))['out'].square().mean()
    l.backward(); o.step()
net.eval()
with torch.no_grad(): net(Batch(torch.ones(3, 2)), Dt())
print(l.item())""",
    "output iterates once": """
class N(nn.Module):
    def __init__(self):
        super().__init__(); self.l = nn.Linear(2, 1); nn.init.ones_(self.l.weight)
        nn.init.ones_(self.l.bias)
    def forward(self, x): return (self.l(x) * i for i in (1, 2))
net = N(); o = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(9):
    o.zero_grad(); l = sum(y.square().mean() for y in net(torch.ones(3, 2))); l.backward()
    o.step()
print(l.item())""",
    "input iterates once": """
class N(nn.Module):
    def __init__(self):
        super().__init__(); self.l = nn.Linear(2, 1); nn.init.ones_(self.l.weight)
        nn.init.ones_(self.l.bias)
    def forward(self, xs): return sum(self.l(x) for x in xs)
net = N(); o = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(9):
    o.zero_grad(); l = net(iter([torch.ones(3, 2)] * 2)).square().mean(); l.backward(); o.step()
print(l.item())""",
    "warn stacklevel": """
def old(): warnings.warn('deprecated', DeprecationWarning, stacklevel=2)
with warnings.catch_warnings(record=True) as w:
    warnings.simplefilter('always'); old(); print(w[0].lineno, os.path.basename(w[0].filename))
train()""",
    "gc referrers": """
net = nn.Linear(2, 1); x = torch.ones(2, 2); o = torch.optim.SGD(net.parameters(), lr=.1)
for _ in range(3): o.zero_grad(); l = net(x).sum(); l.backward(); o.step()
del l, o; ref = weakref.ref(net); del net; gc.collect(); print(ref() is None)""",
    "settrace lines": """
n = [0]
def tr(frame, event, arg):
    if frame.f_code.co_filename == __file__: n[0] += 1
    return tr
def f(): return train(0, 3, False)
sys.settrace(tr); f(); sys.settrace(None); print(n)""",
    "settrace all threads": """
calls = []
def tr(frame, event, arg):
    if frame.f_code.co_name == 'work': calls.append(event)
threading.settrace(tr)
def work(): train(0, 2, False)
t = threading.Thread(target=work); t.start(); t.join(); threading.settrace(None); print(calls)""",
    "warnings as errors in env": """
warnings.simplefilter('error'); import importlib; importlib.reload(warnings); train()
print(len(warnings.filters) >= 0)""",
    "faulthandler on": """
import faulthandler; print(faulthandler.is_enabled()); faulthandler.enable(); train()
print(faulthandler.is_enabled())""",
    "atexit order": """
import atexit
for i in range(3): atexit.register(print, 'bye', i)
train()
class D:
    def __del__(self): print('del')
KEEP = D()""",
    "threading atexit": """
class M(threading.Thread):
    def run(self): time.sleep(0.3); print('late')
M().start(); train(); print('end')""",
    "excepthook thread": """
threading.excepthook = lambda a: print('hook', a.exc_type.__name__)
t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join(); train()""",
    "unraisable": """
sys.unraisablehook = lambda a: print('unraisable', a.exc_type.__name__)
class D:
    def __del__(self): 1 / 0
d = D(); del d; train()""",
    "main is pickled": """
import pickle
class Mine: pass
print(type(pickle.loads(pickle.dumps(Mine()))).__module__); train()""",
    "anomaly": """
with torch.autograd.set_detect_anomaly(True, check_nan=False): train()""",
    "print hijack": """
import builtins
old = builtins.print
builtins.print = lambda *a, **k: old('>', *a, **k)
train(); builtins.print = old""",
    "open hijack": """
import builtins
old = builtins.open; names = []
def mine(f, *a, **k): names.append(os.path.basename(str(f))); return old(f, *a, **k)
builtins.open = mine; train(); builtins.open = old; print(names)""",
    "descriptors": """
train(); fds = sorted(os.listdir('/proc/self/fd')); print(len(fds) < 20)""",
    "default device": """
torch.set_default_device('meta'); n = nn.Linear(2, 1); print(n.weight.device)
torch.set_default_device(None); train()""",
    "grad disabled globally": """
train(); torch.set_grad_enabled(False); n = nn.Linear(2, 2)
print(n(torch.ones(1, 2)).requires_grad, torch.is_grad_enabled())""",
    "exported": """
print(len(list(torch.export.export(nn.Linear(2, 1), (torch.ones(1, 2),)).graph.nodes))); train()""",
}
