"""Which module a GEMM belongs to: by hand, for modules that share an input, roots and recomputation."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils.checkpoint import checkpoint

from gemm_model import GemmTimer
from gemm_model.integrations.torch_modules import ROOT

MODEL = "KernelModel"


class Attention(nn.Module):
    """Three linear layers of one input, told apart by their widths."""

    def __init__(self):
        super().__init__()
        self.query, self.k, self.value = nn.Linear(64, 64), nn.Linear(64, 32), nn.Linear(64, 16)

    def forward(self, x):
        key, value = self.k(x), self.value(x)
        return self.query(x) + torch.cat((key, key), -1) + torch.cat((value, value, value, value), -1)


class Net(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.attention, self.mixed, self.call = Attention(), nn.Parameter(torch.empty(64, 128)), call

    def forward(self, x):
        return self.call(self.attention, x) @ self.mixed


def backward_calls(net, run):
    """GEMMs of a backward pass by module, the last part of its name, and width of its weights."""
    with GemmTimer("h200", model=MODEL, display=False) as seen:
        run(net(torch.empty(32, 64, requires_grad=True)))
    found = {}
    for timing in seen.timings:
        if timing.backward:
            sizes = {timing.work.m, timing.work.n, timing.work.k} - {32, 64}
            key = timing.module.rpartition(".")[2], *sizes
            found[key] = found.get(key, 0) + timing.count
    return found


@pytest.mark.parametrize(
    "run", [lambda out: out.sum().backward(), lambda out: out.backward(torch.empty_like(out))]
)
def test_each_of_several_modules_with_one_input_has_its_own_backward_gemms(run):
    with torch.device("meta"):
        found = backward_calls(Net(lambda module, x: module(x)), run)
    # Two for each weight. The query's sizes are 32 and 64 alone, the keys' and values' have their width.
    assert found == {("query",): 2, ("k",): 2, ("value", 16): 2, ("Net", 128): 2}


# Without reentrance the run is stopped once all that backward needs is there: before the query, run last.
@pytest.mark.parametrize(("reentrant", "of_query"), [(True, 3), (False, 2)])
def test_what_is_computed_again_is_the_modules_too(reentrant, of_query):
    def call(module, x):
        return checkpoint(module, x, use_reentrant=reentrant)

    with torch.device("meta"):
        found = backward_calls(Net(call), lambda out: out.sum().backward())
    assert found == {("query",): of_query, ("k",): 3, ("value", 16): 3, ("Net", 128): 2}


def test_outside_of_all_modules():
    with GemmTimer("h200", model=MODEL, display=False) as seen:
        x = torch.empty(32, 64, device="meta", requires_grad=True)
        (x @ torch.empty(64, 16, device="meta")).sum().backward()
    found = [(timing.module, timing.backward, timing.count) for timing in seen.timings]
    assert found == [(ROOT, False, 1), (ROOT, True, 1)]


def test_a_module_that_is_not_run_leaves_no_name_behind():
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("no run")

    net = nn.Sequential(Fails())
    with torch.device("meta"), GemmTimer("h200", model=MODEL, display=False) as seen:
        with pytest.raises(ValueError, match="no run"):
            net(torch.empty(8, 8))
        nn.functional.linear(torch.empty(8, 8), torch.empty(8, 8))
    assert [timing.module for timing in seen.timings] == [ROOT]
