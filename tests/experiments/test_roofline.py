"""The kernels that move the bytes of a case and do nothing else."""

import re
from dataclasses import replace

import pytest
import torch

from experiments.config import DIRECTIONS, MODES, NEEDS, Case
from experiments.inputs import Inputs, draw
from experiments.roofline import Roofline, _Part, _part, _words, bytes_moved, traffic, variants

CASE = Case("speed", "kernel", "forward", "float32", 8, 1536, 128)
SMALL = replace(CASE, B=2, C=3, T=50)


def test_bytes_of_a_case() -> None:
    tensor = 8 * 1536 * 128 * 4
    assert bytes_moved(CASE) == 3 * tensor
    assert bytes_moved(replace(CASE, mode="backward")) == 5 * tensor
    assert bytes_moved(replace(CASE, mode="forward_backward")) == 8 * tensor
    assert bytes_moved(replace(CASE, dtype="bfloat16")) == 3 * tensor // 2
    assert bytes_moved(replace(CASE, mode="backward", needs="gates")) == 4 * tensor
    assert bytes_moved(replace(CASE, mode="backward", needs="tokens")) == 3 * tensor
    assert bytes_moved(replace(CASE, lengths="2x64")) == 3 * tensor
    assert bytes_moved(replace(CASE, dtype="complex64")) == 6 * tensor


@pytest.mark.parametrize(("directions", "moved"), [("branched", (6, 10)), ("shared", (4, 7)), ("shared_sum", (3, 6))])
def test_bytes_of_both_directions(directions: str, moved: tuple[int, int]) -> None:
    tensor = 8 * 1536 * 128 * 4
    case = replace(CASE, directions=directions)
    assert bytes_moved(case) == moved[0] * tensor
    assert bytes_moved(replace(case, mode="backward")) == moved[1] * tensor
    saved = 2 if directions == "shared_sum" else 0
    assert bytes_moved(replace(case, mode="forward_backward")) == (sum(moved) + saved) * tensor


def test_the_grid_of_variants() -> None:
    grid = variants()
    assert len(grid) == len(set(grid)) > 15
    assert {variant.block for variant in grid} == {512, 1024, 2048}
    assert {variant.warps for variant in grid} == {1, 2, 4, 8}
    assert {variant.vector for variant in grid} == {2, 4}
    for variant in grid:
        assert variant.vector <= variant.block // (32 * variant.warps) <= 16


@pytest.mark.parametrize(
    ("mode", "needs"), [*((mode, NEEDS[0]) for mode in MODES), ("backward", "gates"), ("backward", "tokens")]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_stand_in_of_the_cpu_moves_every_byte(mode: str, needs: str, dtype: str) -> None:
    case = replace(SMALL, mode=mode, needs=needs, dtype=dtype, T=51)
    inputs = draw(case, "cpu")
    call = Roofline().build(case, inputs)
    assert call.poison is not None and call.check is not None
    call.poison()
    assert call.check() == "the roofline kernel did not write what it read."
    written = call.run()
    assert call.check() is None
    moved = sum(reads for reads, _ in traffic(case)) + len(written)
    assert moved * inputs.tokens.numel() * inputs.tokens.element_size() == bytes_moved(case)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("directions", DIRECTIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_both_directions_move_every_tensor_of_theirs_once(directions: str, mode: str, dtype: str) -> None:
    case = replace(SMALL, mode=mode, directions=directions, dtype=dtype, T=51)
    inputs = draw(case, "cpu")
    for number, (reads, writes) in enumerate(traffic(case)):
        part = _part(case, inputs, number, None)
        assert (len(part.reads), len(part.writes)) == (reads, writes)
        addresses = [tensor.data_ptr() for tensor in (*part.reads, *part.writes)]
        assert len(set(addresses)) == reads + writes, "read twice, a tensor would come from the cache"
    call = Roofline().build(case, inputs)
    assert call.poison is not None and call.check is not None
    call.poison()
    assert call.check() is not None
    call.run()
    assert call.check() is None


def test_one_word_that_is_not_written_is_found() -> None:
    call = Roofline().build(SMALL, draw(SMALL, "cpu"))
    (states,) = call.run()
    states.view(-1)[-1] = 0
    assert call.check is not None and call.check() is not None


def test_the_backward_part_reads_what_the_forward_part_wrote() -> None:
    case = replace(SMALL, mode="forward_backward")
    inputs = draw(case, "cpu")
    Roofline().build(case, inputs).run()
    gates, tokens = _words(inputs.gates), _words(inputs.tokens)
    assert torch.equal(_words(inputs.buffer("states")), gates + tokens)
    assert torch.equal(_words(inputs.buffer("d_gates")), gates + gates + tokens)
    assert torch.equal(_words(inputs.buffer("d_tokens")), _words(inputs.d_states))


def test_odd_numbers_of_16_bit_words_are_moved_too() -> None:
    tensor = torch.randn(3, dtype=torch.bfloat16)
    assert _words(tensor).dtype == torch.int16
    assert _words(tensor[:2]).dtype == torch.int32


def parts_of(inputs: Inputs, reads: int, writes: int) -> _Part:
    sources = [inputs.gates, inputs.tokens, inputs.d_states]
    sources = [*sources, *(each.flip(-1).contiguous() for each in sources)][:reads]
    targets = tuple(torch.full_like(inputs.tokens, float("nan")) for _ in range(writes))
    variant = variants()[0]
    return _Part(tuple(map(_words, sources)), tuple(map(_words, targets)), targets, variant)


@pytest.mark.parametrize(("reads", "writes"), [(1, 1), (2, 1), (3, 1), (3, 2), (2, 3), (5, 2), (6, 4)])
@pytest.mark.parametrize("T", [85, 256, 300])
def test_the_kernel_moves_every_byte(kernel_device: torch.device, reads: int, writes: int, T: int) -> None:
    part = parts_of(draw(replace(SMALL, T=T), str(kernel_device)), reads, writes)
    assert not part.moved()
    part.run()
    assert part.moved()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_the_fastest_variant_is_looked_for_once_a_size(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(CASE, mode=mode)
    roofline = Roofline()
    sets = [draw(case, "cuda", index) for index in range(3)]
    roofline.prepare(case, sets)
    assert "vectors of" in roofline.detail(case, "cuda")["variant"]
    monkeypatch.setattr("experiments.roofline._quick_time", lambda *_: pytest.fail("looked again"))
    roofline.prepare(case, sets)
    call = roofline.build(case, sets[0])
    call.run()
    assert call.check is not None and call.check() is None


@pytest.mark.codegen
@pytest.mark.parametrize(("vector", "wide"), [(4, "v4"), (2, "v2")])
def test_a_thread_moves_as_many_words_at_once_as_the_variant_says(vector: int, wide: str) -> None:
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from experiments.roofline_kernels import move

    pointers = dict.fromkeys("abcdefwxyz", "*i32")
    constants = {"READS": 3, "WRITES": 2, "BLOCK": 1024, "VECTOR": vector}
    signature = {**pointers, "words": "i32", **dict.fromkeys(constants, "constexpr")}
    attributes = {(index,): [["tt.divisibility", 16]] for index in range(10)}
    source = ASTSource(fn=move, signature=signature, constexprs=constants, attrs=attributes)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"]
    # Whole tiles, unmasked, move 1024 words with 128 threads; the last tile is masked word by word.
    assert len(re.findall(rf"ld\.global\.{wide}\.b32", ptx)) == 3 * 1024 // 128 // vector
    assert len(re.findall(rf"st\.global\.{wide}\.b32", ptx)) == 2 * 1024 // 128 // vector
    other = "v2" if wide == "v4" else "v4"
    assert not re.findall(rf"(ld|st)\.global\.{other}", ptx)
