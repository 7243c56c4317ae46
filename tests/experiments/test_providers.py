"""Providers: what they refuse, in which words, and that their calls compute the scan.

Packages that need a GPU are stood in for by fakes of the calls that they document; everything else is the real thing.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import scan
from experiments.config import DIRECTIONS, MODES, PROVIDERS, Case
from experiments.correctness import chosen_rows, exact_of, judge
from experiments.inputs import DTYPES, Inputs, draw
from experiments.providers import base, registry, torch_scan
from experiments.providers.base import Call, Provider, first_line, outputs_of
from scan import tuning
from scan.reference import parallel_scan, sequential_scan

CASE = Case("speed", "api", "forward", "float32", 2, 3, 64)


def provider(name: str) -> Provider:
    return registry.PROVIDERS[name]


def check(name: str, case: Case, given: Inputs | None = None) -> Call:
    """Build the case's call and judge what it returns by the provider's own budget."""
    inputs = draw(case, "cpu") if given is None else given
    call = provider(name).build(case, inputs)
    outputs = call.run()
    if call.finish is not None:
        call.finish(outputs)
    named = call.read(outputs)
    assert tuple(named) == outputs_of(case)
    known = exact_of(case, inputs, chosen_rows(case), provider(name).log_gates)
    assert judge(named, case, known, provider(name).accumulates(case, "cpu")).reason is None
    return call


def test_every_name_of_the_configuration_is_a_provider() -> None:
    assert tuple(registry.PROVIDERS) == PROVIDERS


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["ours", "ref", "sequential", "hillis_steele", "blelloch"])
def test_public_functions_compute_the_scan(name: str, dtype: str, mode: str) -> None:
    if name == "ours" and dtype == "bfloat16" and os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("Triton's interpreter truncates to bfloat16 where a GPU rounds: outside the budget, rightly")
    if name == "ref":
        pytest.importorskip("accelerated_scan.ref")
    case = replace(CASE, mode=mode, dtype=dtype)
    assert provider(name).refuses(case, "cpu") is None
    check(name, case)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_ours_below_the_operator_computes_the_scan(dtype: str, mode: str) -> None:
    case = replace(CASE, level="kernel", mode=mode, dtype=dtype)
    assert provider("ours").refuses(case, "cpu") is None
    check("ours", case)


@pytest.mark.parametrize("mode", MODES)
def test_jax_computes_the_scan(mode: str) -> None:
    pytest.importorskip("jax")
    assert provider("jax_associative_scan").refuses(replace(CASE, T=512), "cpu") is None
    # Shorter than any length it is measured at: compiling takes seconds there.
    short = replace(CASE, T=16, mode=mode)
    for case in (short, replace(short, dtype="bfloat16", dim=-2, reverse=True)):
        call = check("jax_associative_scan", case)
        assert call.finish is not None


@pytest.mark.parametrize("mode", MODES)
def test_torch_associative_scan_computes_the_scan(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[dict[str, Any]] = []

    def uncompiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        compiled.append(options)
        return function

    monkeypatch.setattr(torch, "compile", uncompiled)
    torch_scan._compiled.cache_clear()
    try:
        check("torch_associative_scan", replace(CASE, mode=mode))
        check("torch_associative_scan", replace(CASE, mode=mode, dim=-2, reverse=True))
    finally:
        torch_scan._compiled.cache_clear()
    assert compiled == [{"fullgraph": True, "dynamic": False}] * 2


def test_torch_associative_scan_is_compiled_once_for_all_levels_and_shapes() -> None:
    inputs = draw(CASE, "cpu")
    longer = draw(replace(CASE, T=128), "cpu")
    associative_scan = provider("torch_associative_scan")
    assert isinstance(associative_scan, torch_scan.TorchAssociativeScan)
    functions = [associative_scan.function(CASE, given) for given in (inputs, longer)]
    assert functions[0] is functions[1]


@pytest.mark.parametrize("case", [
    replace(CASE, dim=-2), replace(CASE, reverse=True), replace(CASE, lengths="1x40+1x0+2x12"),
    replace(CASE, dim=-2, reverse=True, lengths="1x40+2x12"),
], ids=["channels_last", "reverse", "packed", "all"])  # fmt: skip
@pytest.mark.parametrize("level", ["api", "kernel"])
@pytest.mark.parametrize("mode", MODES)
def test_ours_takes_every_layout(case: Case, level: str, mode: str) -> None:
    case = replace(case, level=level, mode=mode)
    assert provider("ours").refuses(case, "cpu") is None
    check("ours", case)


@pytest.mark.parametrize(("needs", "returned"), [("gates", ("d_gates",)), ("tokens", ("d_tokens",))])
@pytest.mark.parametrize("level", ["api", "kernel"])
def test_ours_computes_the_gradient_that_is_asked_for(level: str, needs: str, returned: tuple[str, ...]) -> None:
    case = replace(CASE, level=level, mode="backward", needs=needs)
    assert provider("ours").refuses(case, "cpu") is None
    call = check("ours", case)
    assert outputs_of(case) == returned and len(call.run()) == 1
    assert provider("blelloch").refuses(replace(case, level="api"), "cpu") == (
        "blelloch computes the gradients of gates and tokens, whichever are asked for."
    )


@pytest.mark.parametrize(("dim", "strategy"), [(-1, "time_contiguous"), (-2, "channels_last")])
def test_ours_says_which_strategy_tuning_picks(dim: int, strategy: str) -> None:
    case = replace(CASE, mode="forward_backward", dim=dim)
    detail = provider("ours").detail(case, "cuda")
    assert detail["strategy"] == strategy
    assert set(detail["configuration"]) == {"forward", "backward"}
    assert all(config["num_warps"] > 0 for config in detail["configuration"].values())
    json.dumps(detail)
    assert set(provider("ours").detail(replace(case, mode="backward"), "cuda")["configuration"]) == {"backward"}
    assert provider("ours").detail(case, "cpu") == {"strategy": "time_loop"}


def test_ours_says_what_tuning_picks_for_packed_sequences() -> None:
    packed = replace(CASE, mode="forward", dtype="bfloat16", lengths="16x1024", T=16384)
    detail = provider("ours").detail(packed, "cuda")
    expected = tuning.time_contiguous(16384, 2, backward=False, packed=True, n_sequences=16)
    assert detail["configuration"] == {"forward": expected._asdict()}
    assert detail != provider("ours").detail(replace(packed, lengths=""), "cuda")


BOTH = replace(CASE, stem="bidirectional", T=50)


@pytest.mark.parametrize("name", ["ours", "two_launches"])
@pytest.mark.parametrize("directions", DIRECTIONS[1:])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", ["api", "kernel"])
def test_ours_scans_in_both_directions(name: str, directions: str, mode: str, level: str) -> None:
    for more in ({}, {"dim": -2, "dtype": "float16"}):
        case = replace(BOTH, level=level, mode=mode, directions=directions, **more)
        assert provider(name).refuses(case, "cpu") is None
        inputs = draw(case, "cpu")
        before = {which: each.clone() for which, each in inputs.shared().items()}
        call = check(name, case, inputs)
        assert all(torch.equal(each, before[which]) for which, each in inputs.shared().items())
        again = [{which: each.clone() for which, each in call.read(call.run()).items()} for _ in range(2)]
        assert all(torch.equal(each, again[1][which]) for which, each in again[0].items())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", ["api", "kernel"])
def test_transposing_around_ours_computes_the_scan_with_channels_last(mode: str, level: str) -> None:
    case = replace(CASE, level=level, mode=mode, dim=-2, T=37)
    assert provider("transposed").refuses(case, "cpu") is None
    outputs = check("transposed", case).run()
    assert level == "api" or all(each.is_contiguous() for each in outputs)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", ["api", "kernel"])
def test_ours_scans_complex_numbers(mode: str, level: str) -> None:
    case = replace(CASE, level=level, mode=mode, dtype="complex64")
    assert provider("ours").refuses(case, "cpu") is None
    check("ours", case)
    detail = provider("ours").detail(case, "cuda")
    assert detail["strategy"] == "time_contiguous"
    assert detail["configuration"].keys() == set(mode.split("_"))


def test_backward_can_be_called_again_and_again() -> None:
    for name in ("ours", "blelloch", "hillis_steele"):
        call = check(name, replace(CASE, mode="backward"))
        first, second = call.run(), call.run()
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_compiled_backward_gives_no_buffer_away() -> None:
    # Given away, it could not be called again: PyTorch raises.
    config: Any = importlib.import_module("torch._functorch.config")
    with config.patch(donated_buffer=True):
        torch_scan._compiled.cache_clear()
        provider("torch_associative_scan").build(replace(CASE, mode="forward"), draw(CASE, "cpu"))
        assert config.donated_buffer is False
    torch_scan._compiled.cache_clear()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_sequential_is_compared_as_a_user_of_the_dtype_would_get_it(dtype: str) -> None:
    case = replace(CASE, dtype=dtype, mode="forward_backward")
    call = check("sequential", case)
    assert {each.dtype for each in call.read(call.run()).values()} == {DTYPES[dtype]}
    inputs = draw(case, "cpu")
    states = sequential_scan(inputs.gates, inputs.tokens)
    assert torch.equal(call.read(call.run())["states"], states.to(DTYPES[dtype]))


def test_inference_keeps_no_graph() -> None:
    (states,) = check("ours", CASE).run()
    assert not states.requires_grad


class Kernel:
    """A Triton kernel by the way it is launched: `kernel[grid](...)`."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        self.grids.append(grid)
        return self.function


def gradients(gates: Tensor, states: Tensor, d_states: Tensor) -> tuple[Tensor, Tensor]:
    shifted = torch.nn.functional.pad(gates[..., 1:], (0, 1))
    d_tokens = sequential_scan(shifted, d_states, reverse=True)
    return d_tokens * torch.nn.functional.pad(states[..., :-1], (1, 0)), d_tokens


@pytest.fixture
def warp(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []

    def forward(gates: Tensor, tokens: Tensor, out: Tensor, reverse: bool) -> None:
        calls.append("forward")
        assert reverse is False and out.is_contiguous()
        out.copy_(sequential_scan(gates, tokens))

    def backward(gates: Tensor, output: Tensor, out_grad: Tensor, gate_grad: Tensor, token_grad: Tensor) -> None:
        calls.append("backward")
        for target, value in zip((gate_grad, token_grad), gradients(gates, output, out_grad), strict=True):
            target.copy_(value)

    fake = SimpleNamespace(warpscan_forward=forward, warpscan_backward=backward)
    monkeypatch.setattr(provider("warp"), "module", lambda: fake)
    return calls


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_warp_is_called_as_its_autograd_function_calls_it(warp: list[str], mode: str, dtype: str) -> None:
    call = check("warp", replace(CASE, level="kernel", mode=mode, dtype=dtype))
    warp.clear()
    call.run()
    assert warp == {"forward": ["forward"], "backward": ["backward"], "forward_backward": ["forward", "backward"]}[mode]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("dtype", "T", "private"), [
    ("bfloat16", 4096, True), ("float16", 8192, True), ("bfloat16", 2048, False), ("float32", 4096, False),
])  # fmt: skip
def test_warp_gets_memory_to_overrun_where_it_does(
    mode: str, dtype: str, T: int, private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel walks through twice the memory of each tensor there: none of it may be anybody else's."""
    case = replace(CASE, level="kernel", mode=mode, dtype=dtype, T=T)
    inputs = draw(case, "cpu")
    given = {each.data_ptr() for each in inputs.shared().values()}

    def overrun(*arguments: Any) -> None:
        for tensor in arguments:
            if not isinstance(tensor, Tensor):
                continue
            size = tensor.untyped_storage().nbytes()
            assert size - tensor.nbytes == (tensor.nbytes if private else 0)
            if private:
                assert tensor.data_ptr() not in given
                tensor.as_strided((size // tensor.element_size(),), (1,), 0).fill_(7)

    fake = SimpleNamespace(warpscan_forward=overrun, warpscan_backward=overrun)
    monkeypatch.setattr(provider("warp"), "module", lambda: fake)
    before = {name: each.clone() for name, each in inputs.shared().items()}
    call = provider("warp").build(case, inputs)
    call.run()
    assert all(torch.equal(each, before[name]) for name, each in inputs.shared().items())
    assert all(each.shape == inputs.tokens.shape for each in call.read(()).values())
    assert ("past their end" in str(provider("warp").detail(case, "cuda"))) == private


@pytest.mark.parametrize("mode", ["backward", "forward_backward"])
def test_scalar_gets_states_that_it_may_read_past(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its backward kernel reads up to one block behind the last row."""
    case = replace(CASE, level="kernel", mode=mode, T=512)
    read = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *tensors, **_: read.append(tensors)

    monkeypatch.setattr(
        provider("scalar"), "module", lambda: SimpleNamespace(forward_scan=Kernel(), backward_scan=Kernel())
    )
    provider("scalar").build(case, draw(case, "cpu")).run()
    states = read[-1][1]
    assert states.untyped_storage().nbytes() - states.nbytes == 2048 * states.element_size()


@pytest.mark.parametrize(
    ("T", "mode", "refused"), [(512, "backward", True), (512, "forward", False), (2048, "backward", False)]
)
def test_scalar_is_not_called_where_it_reads_memory_of_others(T: int, mode: str, refused: bool) -> None:
    reason = provider("scalar").limits(replace(CASE, level="api", mode=mode, T=T), "cuda")
    assert (reason is not None and "reads past the end of its saved states" in reason) == refused


@pytest.fixture
def warp_between_flips(warp: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    fake = provider("warp").module()
    fake.scan = scan.scan_causal
    monkeypatch.setattr(provider("warp_flips"), "module", lambda: fake)
    return warp


@pytest.mark.parametrize("directions", DIRECTIONS[1:])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", ["api", "kernel"])
def test_warp_scans_the_other_way_between_flips(
    warp_between_flips: list[str], directions: str, mode: str, level: str
) -> None:
    call = check("warp_flips", replace(BOTH, level=level, mode=mode, directions=directions, T=64))
    warp_between_flips.clear()
    call.run()
    once = {"forward": ["forward"], "backward": ["backward"], "forward_backward": ["forward", "backward"]}[mode]
    assert sorted(warp_between_flips) == (sorted(2 * once) if level == "kernel" else [])


def test_a_kernel_writes_to_buffers_that_can_be_poisoned(warp: list[str]) -> None:
    inputs = draw(CASE, "cpu")
    call = check("warp", replace(CASE, level="kernel"), inputs)
    assert call.poison is not None
    call.poison()
    assert inputs.buffer("states").isnan().all()
    call.run()
    assert inputs.buffer("states").isfinite().all()


@pytest.mark.parametrize("mode", MODES)
def test_scalar_is_launched_as_its_autograd_function_launches_it(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(forget: Tensor, inputs: Tensor, states: Tensor, seqlen: int, enable_fp_fusion: bool) -> None:
        assert seqlen == CASE.T and not enable_fp_fusion
        states.copy_(sequential_scan(forget, inputs))

    def backward(
        forget: Tensor, states: Tensor, d_output: Tensor, d_inputs: Tensor, d_forget: Tensor,
        seqlen: int, enable_fp_fusion: bool,
    ) -> None:  # fmt: skip
        assert seqlen == CASE.T and not enable_fp_fusion
        for target, value in zip((d_forget, d_inputs), gradients(forget, states, d_output), strict=True):
            target.copy_(value)

    fake = SimpleNamespace(forward_scan=Kernel(forward), backward_scan=Kernel(backward))
    monkeypatch.setattr(provider("scalar"), "module", lambda: fake)
    check("scalar", replace(CASE, level="kernel", mode=mode))
    assert set(fake.forward_scan.grids) | set(fake.backward_scan.grids) == {(CASE.B, CASE.C)}


@pytest.mark.parametrize("mode", MODES)
def test_complex_is_launched_as_its_autograd_function_launches_it(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(KERNEL, dtype="complex64", mode=mode)

    def forward(forget: Tensor, inputs: Tensor, states: Tensor, seqlen: int, enable_fp_fusion: bool) -> None:
        assert forget.shape[-1] == 2 and seqlen == case.T and not enable_fp_fusion
        torch.view_as_complex(states).copy_(sequential_scan(*map(torch.view_as_complex, (forget, inputs))))

    def backward(
        forget: Tensor, states: Tensor, d_output: Tensor, d_inputs: Tensor, d_forget: Tensor,
        seqlen: int, enable_fp_fusion: bool,
    ) -> None:  # fmt: skip
        assert seqlen == case.T and not enable_fp_fusion
        given = [torch.view_as_complex(each) for each in (forget, states)]
        d_gates, d_tokens = gradients(*(each.conj() for each in given), torch.view_as_complex(d_output))
        torch.view_as_complex(d_inputs).copy_(d_tokens)
        torch.view_as_complex(d_forget).copy_(d_gates)

    fake = SimpleNamespace(forward_scan=Kernel(forward), backward_scan=Kernel(backward))
    monkeypatch.setattr(provider("complex"), "module", lambda: fake)
    check("complex", case)
    assert fake.forward_scan.grids == [(2, 3)]


class ChunkHGRN:
    """The autograd.Function of flash-linear-attention by its two methods: x and log gates `[B, T, C]`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Tensor, initial_state: None = None, final: bool = False) -> tuple[Any, ...]:
        states = parallel_scan(g.exp().double(), x.double())
        ctx.save_for_backward(g, states, initial_state)
        return states.to(x.dtype), None

    @staticmethod
    def backward(ctx: Any, do: Tensor, dht: None = None) -> tuple[Any, ...]:
        g, states, _ = ctx.saved_tensors
        rows = [tensor.transpose(1, 2).double() for tensor in (g.exp(), states, do)]
        d_gates, d_tokens = gradients(*rows)
        return d_tokens.transpose(1, 2).to(do.dtype), (d_gates * rows[0]).transpose(1, 2).float(), None, None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", ["kernel", "api"])
@pytest.mark.parametrize("dim", [-1, -2])
def test_hgrn_gets_logarithms_channels_last(mode: str, level: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []

    def chunk_hgrn(x: Tensor, g: Tensor) -> tuple[Tensor, None]:
        seen.append(tuple(x.shape))
        assert x.is_contiguous() and g.is_contiguous()
        return parallel_scan(g.exp(), x), None

    fake = SimpleNamespace(ChunkHGRNFunction=ChunkHGRN, chunk_hgrn=chunk_hgrn)
    monkeypatch.setattr(provider("hgrn"), "module", lambda: fake)
    check("hgrn", replace(CASE, mode=mode, level=level, dim=dim))
    assert all(shape == (CASE.B, CASE.T, CASE.C) for shape in seen)
    assert bool(seen) == (level == "api")


class RecurrentHGRN(ChunkHGRN):
    """The one that takes cu_seqlens, which its context keeps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Tensor, *more: Any) -> tuple[Any, ...]:
        initial_state, final, cu_seqlens = more
        assert initial_state is None and final is False
        return ChunkHGRN.forward(ctx, x, starting_anew(g, cu_seqlens))


def starting_anew(g: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Log gates that forget at the first step of every packed sequence."""
    g = g.clone()
    g[:, cu_seqlens[:-1].long()] = -torch.inf
    return g


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", ["kernel", "api"])
def test_hgrn_packs_sequences_with_the_function_that_can(
    mode: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fused_recurrent_hgrn(x: Tensor, g: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, None]:
        assert x.shape[0] == 1
        return parallel_scan(starting_anew(g, cu_seqlens).exp(), x), None

    fake = SimpleNamespace(FusedRecurrentHGRNFunction=RecurrentHGRN, fused_recurrent_hgrn=fused_recurrent_hgrn)
    monkeypatch.setattr(provider("hgrn"), "module", lambda: pytest.fail("chunk_hgrn takes no cu_seqlens"))
    monkeypatch.setattr(provider("hgrn"), "packed_module", lambda: fake)
    packed = replace(CASE, B=1, mode=mode, level=level, lengths="1x40+2x12")
    check("hgrn", packed)
    assert provider("hgrn").detail(packed, "cuda")["function"] == "fused_recurrent_hgrn"
    assert provider("hgrn").limits(replace(packed, B=2), "cuda") == (
        "hgrn packs sequences into a batch of 1, and the case has B = 2."
    )


def test_a_gate_of_zero_is_a_logarithm_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider("hgrn"), "module", lambda: SimpleNamespace(ChunkHGRNFunction=ChunkHGRN))
    inputs = draw(CASE, "cpu")
    inputs.gates[0, 0, 5] = 0
    check("hgrn", replace(CASE, mode="forward_backward", level="kernel"), inputs)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lengths", ["", "1x40+2x12"])
def test_the_seeds_package_is_called_as_its_readme_shows(
    mode: str, lengths: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids: list[tuple[int, ...]] = []

    def get_grid(no_seq: int, max_seqlen: int, chunk_size: int, no_channels: int) -> tuple[int, int, int]:
        grids.append((no_seq, max_seqlen, chunk_size, no_channels))
        return no_seq, -(-max_seqlen // chunk_size), no_channels

    def scan_causal(gates: Tensor, tokens: Tensor, args: dict[str, Any]) -> Tensor:
        assert set(args) == {"cu_seqlens", "chunk_size", "grid"}
        return scan.linear_scan(gates, tokens, cu_seqlens=args["cu_seqlens"]).states

    fake = SimpleNamespace(get_grid=get_grid, scan_causal=scan_causal)
    monkeypatch.setattr(provider("associative_scan_triton"), "module", lambda: fake)
    check("associative_scan_triton", replace(CASE, mode=mode, lengths=lengths))
    assert grids == [(4, 40, 64, 6)] if lengths else grids == [(2, 64, 64, 6)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reverse", [False, True])
def test_linrec_is_called_on_rows(mode: str, reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def linrec(inputs: Tensor, coeffs: Tensor, reverse: bool) -> Tensor:
        assert inputs.shape == (CASE.B * CASE.C, CASE.T)
        return scan.linear_scan(coeffs, inputs, reverse=reverse).states

    monkeypatch.setattr(provider("linrec"), "module", lambda: SimpleNamespace(linrec=linrec))
    check("linrec", replace(CASE, mode=mode, reverse=reverse))


KERNEL = replace(CASE, level="kernel")
REFUSALS = [
    ("warp", CASE, "cpu", "warp runs on cuda, and this device is cpu."),
    ("warp", replace(KERNEL, T=100), "cuda",
     "warp takes T that is a power of two from 32 to 65536, and the case has 100."),
    ("warp", replace(KERNEL, T=131072), "cuda",
     "warp takes T that is a power of two from 32 to 65536, and the case has 131072."),
    ("warp", replace(CASE, dtype="float64"), "cuda", "warp has no float64."),
    ("warp", replace(CASE, dim=-2), "cuda",
     "warp takes channels first, time contiguous, and the case holds channels last."),
    ("transposed", KERNEL, "cpu",
     "transposed takes channels last, and the case holds channels first, time contiguous."),
    ("complex", KERNEL, "cuda", "complex has no float32."),
    ("scalar", replace(KERNEL, dtype="complex64"), "cuda", "scalar has no complex64."),
    ("complex", replace(KERNEL, B=2**10, T=2**18 * 4, C=1, dtype="complex64"), "cuda",
     "complex has 32-bit offsets, and the case has 2147483648 real numbers."),
    ("hgrn", replace(BOTH, directions="shared"), "cuda", "hgrn scans in one direction, and the case asks for both."),
    ("two_launches", KERNEL, "cpu", "two_launches scans in both directions, and the case asks for one."),
    ("warp_flips", replace(BOTH, T=4096, dtype="bfloat16", directions="branched"), "cuda",
     "warp reads and writes past the end of its tensors in 16 bits at this length, and torch.flip leaves no room "
     "behind those that it makes."),
    ("warp_flips", replace(BOTH, T=100, directions="branched"), "cuda",
     "warp takes T that is a power of two from 32 to 65536, and the case has 100."),
    ("scalar", replace(CASE, C=70000), "cuda",
     "scalar puts channels on a grid axis of at most 65535, and the case has 70000."),
    ("scalar", replace(CASE, B=2**15, T=2**16), "cuda",
     "scalar has 32-bit offsets, and the case has 6442450944 elements."),
    ("ref", KERNEL, "cpu", "ref is a composition of PyTorch operators: it has no kernel to call directly, "
     "see level api."),
    ("ref", replace(CASE, T=1), "cpu", "ref fails at T = 1: its tree needs at least two steps."),
    ("ref", replace(CASE, lengths="2x32"), "cpu", "ref cannot scan packed sequences."),
    ("ref", replace(CASE, reverse=True), "cpu", "ref has no reverse direction that is differentiable."),
    ("sequential", KERNEL, "cpu", "sequential is a composition of PyTorch operators: it has no kernel to call "
     "directly, see level api."),
    ("sequential", replace(CASE, T=8192), "cpu",
     "sequential takes a Python iteration a step, so only T <= 4096 is measured on cpu."),
    ("sequential", replace(CASE, T=1024), "cuda",
     "sequential takes a Python iteration a step, so only T <= 512 is measured on cuda."),
    ("hillis_steele", replace(CASE, B=8, C=1536, T=8192), "cuda",
     "hillis_steele launches an operator a level of its tree and keeps what each returns, so only cases of at most "
     "50331648 elements are measured, and this one has 100663296."),
    ("blelloch", replace(CASE, B=8, C=1536, T=32768), "cuda",
     "blelloch launches an operator a level of its tree and keeps what each returns, so only cases of at most "
     "201326592 elements are measured, and this one has 402653184."),
    ("ref", replace(CASE, B=8, C=1536, T=32768), "cuda",
     "ref launches an operator a level of its tree and keeps what each returns, so only cases of at most 201326592 "
     "elements are measured, and this one has 402653184."),
    ("warp", replace(CASE, dtype="bfloat16", T=4096), "cuda",
     "warp reads and writes past the end of its tensors in 16 bits from T = 4096 on, so only its kernels are run "
     "there, see level kernel."),
    ("torch_associative_scan", CASE, "cpu",
     "compiling torch_associative_scan for a CPU takes 20 s a length and dtype, so only T = 512 in float32 is "
     "measured."),
    ("torch_associative_scan", replace(KERNEL, mode="backward"), "cuda",
     "torch_associative_scan has a kernel of its own for forward alone: autograd makes the rest."),
    ("torch_associative_scan", replace(CASE, mode="backward"), "cuda",
     "torch_associative_scan has no backward that compiles for CUDA, so only forward is measured."),
    ("torch_associative_scan", replace(KERNEL, T=1024), "cuda",
     "compiling torch_associative_scan takes seconds a length and dtype, so only T = 512, 4096 in float32 are "
     "measured."),
    ("torch_associative_scan", replace(KERNEL, T=512, dtype="bfloat16"), "cuda",
     "compiling torch_associative_scan takes seconds a length and dtype, so only T = 512, 4096 in float32 are "
     "measured."),
    ("jax_associative_scan", replace(CASE, stem="precision", T=512, dim=-2), "cpu",
     "compiling jax_associative_scan takes seconds a shape, and its errors are measured with time last."),
    ("jax_associative_scan", CASE, "cpu",
     "compiling jax_associative_scan takes seconds a shape, so only T = 512, 4096 are measured."),
    ("jax_associative_scan", KERNEL, "cpu", "jax_associative_scan has no kernel to call directly, see level api."),
    ("associative_scan_triton", replace(CASE, C=40000), "cuda",
     "associative_scan_triton puts rows on a grid axis of at most 65535, and the case has 80000."),
    ("associative_scan_triton", KERNEL, "cuda",
     "associative_scan_triton documents no call below its public functions, see level api."),
    ("linrec", KERNEL, "cuda", "linrec is called through its public function, see level api."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "case", "device", "reason"), REFUSALS)
def test_a_refusal_is_a_sentence(name: str, case: Case, device: str, reason: str) -> None:
    assert provider(name).refuses(case, device) == reason


def test_a_package_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider("linrec"), "package", "no_such_package")
    assert provider("linrec").refuses(CASE, "cuda") == (
        "no_such_package cannot be imported here: No module named 'no_such_package'."
    )


def test_a_package_that_breaks_when_imported_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def module() -> None:
        raise RuntimeError("nvcc was not found.\nlong log")

    monkeypatch.setattr(provider("scalar"), "module", module)
    monkeypatch.setattr(base, "_broken_packages", {})
    reason = "accelerated_scan.scalar fails when imported: RuntimeError: nvcc was not found."
    assert provider("scalar").refuses(CASE, "cuda") == reason
    monkeypatch.setattr(provider("scalar"), "module", lambda: pytest.fail("imported again, which may take a minute"))
    assert provider("scalar").refuses(CASE, "cuda") == reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_warp_is_not_imported_without_a_gpu() -> None:
    assert provider("warp").refuses(KERNEL, "cuda") == (
        "accelerated_scan.warp compiles CUDA code when it is imported, and no GPU is visible."
    )


def test_jax_without_a_plugin_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def devices(kind: str) -> list[str]:
        raise RuntimeError("no such backend")

    monkeypatch.setattr(provider("jax_associative_scan"), "module", lambda: SimpleNamespace(devices=devices))
    assert provider("jax_associative_scan").refuses(replace(CASE, T=512), "cuda") == (
        "jax_associative_scan finds no cuda device: JAX is installed without the plugin for it."
    )


def test_no_competitor_is_imported_before_it_is_asked_for() -> None:
    program = (
        "import sys, experiments.measure, experiments.precision;"
        "print(sorted({'jax', 'fla', 'accelerated_scan', 'linrec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_messages_are_cut_to_a_line() -> None:
    assert first_line(ValueError("one.\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"
    assert len(first_line(ValueError("x" * 1000))) == 240


@pytest.mark.parametrize("directions", DIRECTIONS)
def test_backward_alone_is_that_of_a_later_call(directions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Calls of one direction return states alone, as those of peers do.
    name = "scan_causal" if directions == DIRECTIONS[0] else "linear_scan_bidirectional"
    function, calls = getattr(scan, name), []
    monkeypatch.setattr(scan, name, lambda *tensors, **options: calls.append(0) or function(*tensors, **options))
    case = replace(CASE, mode="backward", directions=directions)
    provider("ours").build(case, draw(case, "cpu")).run()
    assert len(calls) == 3
