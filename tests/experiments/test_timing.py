"""Samplers and turns; nothing here asserts how long something takes."""

import gc
import time
import weakref
from collections.abc import Callable

import pytest
import torch

from experiments.providers.base import Call
from experiments.timing import (
    EventSampler,
    GraphSampler,
    Sample,
    WallSampler,
    calls_for,
    fits_graph,
    flush_buffer,
    graph_order,
    interleave,
    l2_bytes,
    sets_needed,
    warm_up,
)

MIB = 2**20


class Recorder:
    """A sampler that writes down when it is asked."""

    timing = "fake"

    def __init__(self, name: str, log: list[str], fails_at: int | None = None, batch: int = 1) -> None:
        self.name, self.log, self.fails_at, self.batch = name, log, fails_at, batch
        self.taken: list[tuple[int, bool]] = []

    def sample(self, calls: int, keep: bool = False) -> Sample:
        self.log.append(self.name)
        if len(self.taken) == self.fails_at:
            raise RuntimeError("broken")
        self.taken.append((calls, keep))
        return Sample(float(len(self.taken)))

    def outputs(self) -> tuple[()]:
        return ()


def test_providers_take_turns_and_another_begins_each_round() -> None:
    log: list[str] = []
    samplers = {name: Recorder(name, log) for name in "abc"}
    finished: list[str] = []
    spent: dict[str, float] = {}
    taken = interleave(samplers, {"a": 1, "b": 2, "c": 3}, 5, finished.append, lambda name, error: None, spent)
    assert set(spent) == set("abc") and min(spent.values()) > 0
    assert "".join(log) == "abcbcacababcbca"
    assert all([sample.ms for sample in samples] == [1.0, 2.0, 3.0, 4.0, 5.0] for samples in taken.values())
    assert set(taken) == set("abc")
    assert samplers["b"].taken == [(2, False)] * 4 + [(2, True)]
    assert finished == ["b", "c", "a"]


def test_a_provider_that_fails_leaves_and_the_others_go_on() -> None:
    log: list[str] = []
    samplers = {"a": Recorder("a", log), "b": Recorder("b", log, fails_at=1)}
    failures: list[tuple[str, str]] = []
    taken = interleave(
        samplers, {"a": 1, "b": 1}, 5, lambda name: None, lambda name, error: failures.append((name, str(error))), {}
    )
    assert list(taken) == ["a"] and len(taken["a"]) == 5
    assert failures == [("b", "broken")]
    assert log.count("b") == 2


def test_a_check_that_fails_after_the_last_sample_is_a_failure() -> None:
    def finished(name: str) -> None:
        raise ValueError(name)

    failures: list[str] = []
    taken = interleave({"a": Recorder("a", [])}, {"a": 1}, 5, finished, lambda name, error: failures.append(name), {})
    assert taken == {} and failures == ["a"]


def test_calls_fill_a_sample_in_whole_batches() -> None:
    assert calls_for(20, 1, 1) == 20
    assert calls_for(20, 50, 1) == 1
    assert calls_for(20, 1, 13) == 26
    assert calls_for(20, 1, 100) == 100
    assert calls_for(1e9, 1e-9, 1) == 10_000


def test_sets_of_buffers_keep_the_cache_cold() -> None:
    l2, free = 60 * MIB, 100_000 * MIB
    for call in (1 * MIB, 19 * MIB, 100 * MIB, 3000 * MIB):
        sets = sets_needed(call, l2, free)
        assert sets >= 3 and sets * call >= 4 * l2
        assert len(graph_order([None] * sets, call, l2)) * call >= 64 * l2  # type: ignore[list-item]
    assert sets_needed(19 * MIB, l2, 8 * 60 * MIB) == 3
    assert sets_needed(19 * MIB, l2, 0) == 1
    assert fits_graph(63 * l2, l2) and not fits_graph(64 * l2, l2)


def test_a_graph_holds_the_sets_in_turn() -> None:
    assert graph_order(["x", "y", "z"], 16, 2) == ["x", "y", "z"] * 3  # type: ignore[list-item]
    assert graph_order(["x"], 10**9, 2) == ["x"]  # type: ignore[list-item]


def counting(finish: Callable[[tuple[object, ...]], None] | None = None) -> tuple[Call, list[int]]:
    runs: list[int] = []

    def run() -> tuple[object, ...]:
        runs.append(len(runs))
        return (runs[-1],)

    return Call(run, lambda outputs: {}, finish), runs


def test_wall_clock_sampler_runs_as_often_as_told() -> None:
    call, runs = counting()
    prepared: list[int] = []
    sampler = WallSampler(call, lambda: prepared.append(len(runs)))
    sample = sampler.sample(3)
    assert runs == [0, 1, 2] and prepared == [0, 1, 2]
    assert sample.ms > 0 and sample.host_us is None
    assert sampler.outputs() == ()
    sampler.sample(2, keep=True)
    assert sampler.outputs() == (4,)
    assert sampler.outputs() == ()


def test_wall_clock_sampler_waits_for_the_outputs_and_tells_the_two_times_apart() -> None:
    waited: list[object] = []

    def finish(outputs: tuple[object, ...]) -> None:
        waited.append(outputs[0])
        time.sleep(0.002)

    call, _ = counting(finish)
    sample = WallSampler(call).sample(4)
    assert waited == [0, 1, 2, 3]
    assert sample.host_us is not None and sample.host_us < sample.ms * 1e3


def test_warm_up_runs_whole_batches_for_about_the_given_time() -> None:
    recorder = Recorder("a", [], batch=7)
    warm_up(recorder, 0.5)
    assert sum(calls for calls, _ in recorder.taken) >= 7
    assert all(calls % 7 == 0 for calls, _ in recorder.taken)
    once = Recorder("b", [])
    warm_up(once, 1e-9)
    assert once.taken == [(1, False)]


class Private:
    """What only a call holds: saved states, inputs in another layout."""


def holding(kept: list[weakref.ref[Private]]) -> Call:
    private = Private()
    kept.append(weakref.ref(private))

    def run() -> tuple[torch.Tensor, ...]:
        return (torch.zeros(2) if private else torch.ones(2),)

    return Call(run, lambda outputs: {"states": outputs[0]})


def test_a_graph_keeps_what_its_calls_read(captured: list[str]) -> None:
    """A graph holds addresses only: memory that a call alone holds would be freed and unmapped under it."""
    kept: list[weakref.ref[Private]] = []
    sampler = GraphSampler([holding(kept) for _ in range(3)] * 2)
    gc.collect()
    assert len(kept) == 3 and all(each() is not None for each in kept)
    sampler.sample(6)
    assert captured == ["captured", "replayed"]
    del sampler
    gc.collect()
    assert all(each() is None for each in kept)


@pytest.fixture
def addition() -> tuple[list[Call], list[torch.Tensor]]:
    inputs = [torch.full((1 << 16,), float(k), device="cuda") for k in range(3)]

    def call(tensor: torch.Tensor) -> Call:
        return Call(lambda: (tensor + 1,), lambda outputs: {"states": outputs[0]})

    return [call(tensor) for tensor in inputs], inputs


@pytest.mark.gpu
def test_a_graph_runs_every_call_of_it(addition: tuple[list[Call], list[torch.Tensor]]) -> None:
    calls, inputs = addition
    calls[0].run()
    sampler = GraphSampler(calls * 2)
    assert sampler.batch == 6
    for tensor in inputs:
        tensor.add_(10)
    sampler.poison()
    assert sampler.sample(12).ms > 0
    assert torch.equal(sampler.outputs()[0], inputs[0] + 1)
    pointers = {outputs[0].data_ptr() for outputs in sampler._outputs}
    assert len(pointers) == 6
    assert all(torch.equal(outputs[0], inputs[k % 3] + 1) for k, outputs in enumerate(sampler._outputs))


@pytest.mark.gpu
@pytest.mark.parametrize("drained", [True, False])
def test_events_bracket_every_call(addition: tuple[list[Call], list[torch.Tensor]], drained: bool) -> None:
    calls, inputs = addition
    sampler = EventSampler(calls[0], flush_buffer("cuda"), drained)
    sample = sampler.sample(4, keep=True)
    assert sample.ms > 0
    assert (sample.host_us is not None) == drained
    assert torch.equal(sampler.outputs()[0], inputs[0] + 1)
    assert sampler.outputs() == ()
    assert flush_buffer("cuda").numel() >= 4 * l2_bytes("cuda")
