"""Every configuration file composes and converts; every setting that cannot be used says so in one sentence."""

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

hydra = pytest.importorskip("hydra")

from experiments import store  # noqa: E402
from experiments.compose import CONF, compose, options, settings_of  # noqa: E402
from experiments.config import (  # noqa: E402
    NEEDS,
    PROVIDERS,
    Case,
    ConfigError,
    Hardware,
    Measure,
    Settings,
    parse_lengths,
)
from experiments.hardware import (  # noqa: E402
    ROOT,
    Machine,
    ask_these_machines,
    check,
    overrides_for,
    these_machines,
    this_machine,
)

LENGTHS = tuple(2**power for power in range(7, 17))
CASE = Case("speed", "api", "forward", "float32", B=2, C=3, T=128)


def settings(*overrides: str) -> Settings:
    """The settings of a command line; on this machine hardware=auto would ask PyTorch, so a preset is named."""
    if not any(each.startswith("hardware=") for each in overrides):
        overrides = ("hardware=h200", *overrides)
    return settings_of(compose(*overrides), list(overrides))


def presets() -> dict:
    from omegaconf import OmegaConf

    return {name: OmegaConf.load(CONF / "hardware" / f"{name}.yaml") for name in options("hardware")}


@pytest.mark.parametrize(
    ("experiment", "hardware"),
    list(itertools.product(options("experiment"), [name for name in options("hardware") if name != "auto"])),
)
def test_every_experiment_suits_every_machine(experiment, hardware):
    made = settings(f"experiment={experiment}", f"hardware={hardware}")
    assert made.experiment.stem == experiment
    assert made.hardware.name == hardware
    cases = [case for case in made.experiment.cases() if made.hardware.fits(case)]
    assert cases
    assert Settings.from_dict(json.loads(json.dumps(made.to_dict()))) == made


@pytest.mark.parametrize("group", ["measure", "tracking", "providers"])
def test_every_option_composes_and_differs(group):
    made = [settings(f"{group}={name}") for name in options(group)]
    assert len({json.dumps(each.to_dict()) for each in made}) == len(made) > 1


def test_the_cluster_launcher_composes():
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose("config", ["hydra/launcher=slurm"], return_hydra_config=True)
    assert config.hydra.launcher._target_.endswith("SlurmLauncher")
    assert config.hydra.launcher.gpus_per_node == 1


def test_speed_is_the_sweep_of_the_published_tables():
    made = settings("experiment=speed").experiment
    assert (made.B, made.C, made.T) == ((8,), (1536,), LENGTHS)
    assert set(made.dtype) == {"float32", "bfloat16", "float16"}
    assert set(made.mode) == {"forward", "backward", "forward_backward"}
    assert set(made.level) == {"kernel", "api"}
    published = [
        case for case in made.cases() if not case.reverse and case.needs == "gates,tokens" and case.T in LENGTHS
    ]
    assert len(published) == len(set(published)) == 10 * 3 * 3 * 2
    assert made.cases()[: len(published)] == published


def test_speed_also_runs_backwards_at_odd_lengths_and_with_fewer_gradients():
    made = settings("experiment=speed").experiment
    more = made.cases()[10 * 3 * 3 * 2 :]
    assert {case.level for case in more} == {"kernel"} and {case.dtype for case in more} == {"float32", "bfloat16"}
    assert {case.T for case in more if case.reverse} < set(LENGTHS), "each beside its forward case"
    assert {case.T for case in more if case.T not in LENGTHS} == {1000, 4097, 8191, 33753}
    fewer = [case for case in more if case.needs != "gates,tokens"]
    assert {case.needs for case in fewer} == {"gates", "tokens"} and {case.mode for case in fewer} == {"backward"}
    assert len(more) == len(set(made.cases())) - 180 == (5 + 4) * 2 * 2 + 3 * 2 * 2


def test_packing_is_four_packings_and_a_pair_of_the_same_total():
    made = settings("experiment=packing").experiment.cases()
    kernel = {case.lengths: case for case in made if case.level == "kernel"}
    assert {lengths: case.T for lengths, case in kernel.items()} == {
        "1x32768+64x512": 65536, "32x1000..2147": 50352, "4096x1..64": 133120, "1x65536": 65536,
    }  # fmt: skip
    api = {case.lengths: case for case in made if case.level == "api"}
    assert {len(case.sequence_lengths): case.T for case in api.values()} == {8: 65536, 1024: 65536}
    assert {(case.B, case.C) for case in made} == {(1, 1536)}


def test_layouts_hold_channels_last_at_even_and_odd_numbers_of_channels():
    cases = settings("experiment=layouts").experiment.cases()
    assert {case.dim for case in cases} == {-2} and {case.level for case in cases} == {"kernel"}
    shapes = {(case.B, case.T, case.C) for case in cases}
    lengths = (512, 2048, 4096, 16384)
    assert shapes == {*((8, T, 1536) for T in lengths), (2, 65536, 1536), (8, 4096, 100), (8, 4096, 1537)}
    assert len(cases) == len(shapes) * 2 * 2


def test_few_rows_are_seven_shapes_and_one_of_complex_numbers():
    cases = settings("experiment=few_rows").experiment.cases()
    shapes = {(case.dtype, case.C, case.T) for case in cases}
    assert shapes == {
        *(("float32", C, T) for C, T in (
            (512, 2**17), (64, 2**20), (1, 2**24), (16, 2**16), (1, 2**20), (4, 2**20), (4096, 2**10)
        )),
        ("complex64", 512, 2**17),
    }  # fmt: skip
    assert len(cases) == 2 * len(shapes) and {(case.B, case.dim) for case in cases} == {(1, -1)}


def test_both_directions_have_three_forms_and_calls_with_and_without_gradients():
    cases = settings("experiment=bidirectional").experiment.cases()
    assert {case.directions for case in cases} == {"branched", "shared", "shared_sum"}
    kernel, api = ([case for case in cases if case.level == level] for level in ("kernel", "api"))
    assert {case.T for case in kernel} == set(LENGTHS) - {32768} and len(kernel) == 3 * 9 * 2 * 2
    modes = ("forward", "forward_backward")
    assert {(case.T, case.mode) for case in api} == set(itertools.product((128, 256, 1024), modes))
    assert len(api) == 3 * 3 * 2 * 2


@pytest.mark.parametrize("experiment", ["layouts", "few_rows", "bidirectional"])
def test_an_experiment_names_its_providers_unless_told_otherwise(experiment):
    made = settings(f"experiment={experiment}")
    assert {"ours", "roofline"} < set(made.providers) < set(PROVIDERS)
    assert settings(f"experiment={experiment}", "providers=ours").providers == ("ours", "roofline")
    assert settings(f"experiment={experiment}", "providers.names=[hgrn]").providers == ("hgrn",)
    assert not {"transposed", "complex", "two_launches", "warp_flips"} & set(settings().providers)


def test_an_axis_named_by_hand_holds_in_every_block():
    made = settings("experiment=speed", "experiment.T=[256]", "experiment.dtype=float16").experiment
    assert {(case.T, case.dtype) for case in made.cases()} == {(256, "float16")}
    assert any(case.reverse for case in made.cases()) and any(case.needs == "gates" for case in made.cases())


def test_blocks_can_be_left_out_and_changed_by_name():
    alone = settings("experiment=speed", "~experiment.also").experiment
    assert len(alone.cases()) == 180
    changed = settings("experiment=speed", "experiment.also.reverse.T=[512]").experiment
    assert {case.T for case in changed.cases() if case.reverse} == {512}
    added = settings("experiment=speed", "+experiment.also.few={C:[64],T:[128]}").experiment
    assert {case.C for case in added.cases()} == {1536, 64}


def test_precision_covers_the_published_lengths_with_enough_draws():
    made = settings("experiment=precision").experiment
    assert {128, 512, 2048, 8192} < set(made.T)
    assert (made.B, made.C) == ((1,), (4,))
    assert set(made.gates) == {"uniform_0_1", "uniform_099_1"}
    assert made.draws >= 32
    assert set(made.dim) == {-1, -2}, "the strategy of either layout"


def test_what_matters_most_is_measured_first_and_draws_are_shared_by_neighbours():
    cases = settings("experiment=speed", "~experiment.also").experiment.cases()
    groups = list(dict.fromkeys((case.level, case.dtype) for case in cases))
    assert groups == [(level, dtype) for level in ("kernel", "api") for dtype in ("float32", "bfloat16", "float16")]
    assert [(case.T, case.mode) for case in cases[:4]] == [
        (128, "forward"), (128, "backward"), (128, "forward_backward"), (256, "forward"),
    ]  # fmt: skip
    assert cases == sorted(cases, key=lambda case: groups.index((case.level, case.dtype)))
    pair = settings("experiment=precision").experiment.cases()[:2]
    assert [case.dim for case in pair] == [-1, -2] and dataclasses.replace(pair[1], dim=-1) == pair[0]


def test_a_cpu_has_more_patience_with_a_call_unless_told_otherwise():
    assert settings("hardware=cpu").measure.longest_call_s == 2 > settings("hardware=h200").measure.longest_call_s
    assert settings("hardware=cpu", "measure.longest_call_s=0.5").measure.longest_call_s == 0.5


def test_the_papers_measure_is_the_default():
    assert settings("measure=paper").measure == Measure()


def test_measuring_takes_at_least_five_samples():
    assert all(settings(f"measure={name}").measure.repeats >= 5 for name in options("measure"))


def test_twelve_gigabytes_hold_the_lengths_of_the_published_tables():
    made = settings("hardware=rtx_3080_ti")
    longest = {}
    for case in made.experiment.cases():
        if made.hardware.fits(case):
            longest[case.level, case.mode] = max(case.T, longest.get((case.level, case.mode), 0))
    assert longest == {
        ("kernel", "forward"): 65536,
        ("api", "forward"): 65536,
        ("kernel", "backward"): 32768,
        ("kernel", "forward_backward"): 32768,
        ("api", "backward"): 16384,
        ("api", "forward_backward"): 16384,
    }


def test_both_directions_take_the_memory_of_two():
    limits = settings("hardware=rtx_3080_ti").hardware
    longest = dataclasses.replace(CASE, level="kernel", mode="backward", B=8, C=1536, T=32768)
    assert limits.fits(longest) and not limits.fits(dataclasses.replace(longest, directions="shared"))


def test_few_rows_are_not_held_to_the_limit_of_many():
    limits = settings("hardware=rtx_3080_ti").hardware
    assert limits.fits(dataclasses.replace(CASE, mode="backward", B=1, C=4, T=131072))


@pytest.mark.parametrize("experiment", ["speed", "precision"])
def test_a_cpu_gets_short_sequences(experiment):
    made = settings(f"experiment={experiment}", "hardware=cpu").experiment
    assert max(made.T) == 4096
    assert max(made.B) * max(made.C) < 8 * 1536


@pytest.mark.parametrize(
    ("override", "axis", "values"),
    [
        ("experiment.T=[128,256]", "T", (128, 256)),
        ("experiment.T=256", "T", (256,)),
        ("experiment.C=7", "C", (7,)),
        ("experiment.dtype=bfloat16", "dtype", ("bfloat16",)),
        ("experiment.reverse=[false,true]", "reverse", (False, True)),
        ("experiment.gates=uniform_099_1", "gates", ("uniform_099_1",)),
        ("experiment.dim=-2", "dim", (-2,)),
    ],
)
@pytest.mark.parametrize("experiment", ["speed", "precision"])
@pytest.mark.parametrize("hardware", ["h200", "cpu"])
def test_any_axis_can_be_overridden(experiment, hardware, override, axis, values):
    made = settings(f"experiment={experiment}", f"hardware={hardware}", override).experiment
    assert {getattr(case, axis) for case in made.cases()} == set(values)


def test_packed_cases_have_the_sum_of_their_lengths():
    made = settings("experiment.lengths=1x300+2x10", "experiment.T=128")
    assert {(case.T, case.sequence_lengths) for case in made.experiment.cases()} == {(320, (300, 10, 10))}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("level", "kernel"), ("mode", "backward"), ("dtype", "float16"), ("B", 1), ("C", 4), ("T", 129), ("dim", -2),
        ("reverse", True), ("lengths", "2x64"), ("lengths", "2x1..127"), ("gates", "uniform_099_1"), ("draws", 2),
        ("seed", 1), ("stem", "smoke"), ("directions", "shared"),
    ],
)  # fmt: skip
def test_every_field_of_a_case_shows_in_its_id(field, value):
    assert dataclasses.replace(CASE, **{field: value}).id != CASE.id


def test_later_fields_show_in_the_id_and_leave_the_others_as_they_were_stored():
    backward = dataclasses.replace(CASE, mode="backward")
    assert "-gates_only-" in dataclasses.replace(backward, needs="gates").id
    assert len({dataclasses.replace(backward, needs=needs).id for needs in NEEDS}) == 3
    assert "-shared_sum-" in dataclasses.replace(CASE, directions="shared_sum").id
    stored = json.loads((ROOT / "paper/results/h200/speed.jsonl").read_text().splitlines()[0])
    assert Case(**stored["case"]).id == stored["case_id"]


def test_the_id_of_a_case_reads_and_stays():
    assert CASE.id.startswith("api-forward-float32-B2-C3-T128-")
    assert CASE.id == Case(**dataclasses.asdict(CASE)).id
    assert "-T128-channels_last-" in dataclasses.replace(CASE, dim=-2).id
    assert "-T128-2x1..127-" in dataclasses.replace(CASE, lengths="2x1..127").id
    many = "+".join(f"1x{length}" for length in range(1, 40))
    assert "-T780-packed-" in dataclasses.replace(CASE, T=780, lengths=many).id


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["experiment.T=0"], "T must be an integer of at least 1, got 0."),
        (["experiment.T=1.5"], "T must be an integer of at least 1, got 1.5."),
        (
            ["experiment.dtype=float31"],
            "dtype must be one of 'float32', 'float16', 'bfloat16', 'float64', 'complex64', got 'float31'.",
        ),
        (["experiment.dim=1"], "dim must be -1 (time last) or -2 (channels last), got 1."),
        (["experiment.reverse=maybe"], "reverse must be true or false, got 'maybe'."),
        (
            ["experiment.lengths=3"],
            "lengths must look like '1x32768+64x512' (count x length) or '32x1000..2147' (count x shortest..longest), "
            "got 3.",
        ),
        (["experiment.lengths=1x3..4"], "lengths must rise over at least 2 sequences, got 1x3..4."),
        (["experiment.needs=states"], "needs must be one of 'gates,tokens', 'gates', 'tokens', got 'states'."),
        (["experiment.needs=gates"], "needs must be 'gates,tokens' where mode is 'forward', got 'gates'."),
        (
            ["experiment.directions=both"],
            "directions must be one of 'causal', 'branched', 'shared', 'shared_sum', got 'both'.",
        ),
        (
            ["experiment.directions=shared", "~experiment.also", "experiment.reverse=true"],
            "directions must be 'causal' where reverse, lengths or needs are set, got 'shared'.",
        ),
        (
            ["+experiment.also.few.N=3"],
            "experiment.also.few.N is no axis; the axes are dtype, mode, level, B, C, T, dim, reverse, lengths, gates, "
            "needs, directions.",
        ),
        (["+experiment.also.few=3"], "experiment.also.few must be a mapping with the axes that differ, got 3."),
        (["experiment.also=3"], "experiment.also must be a mapping from names to blocks of axes, got 3."),
        (["experiment.also.reverse.T=0"], "T must be an integer of at least 1, got 0."),
        (["experiment.T=[]"], "experiment.T must name at least one value, got none."),
        (["experiment.also.reverse.T=[]"], "experiment.also.reverse.T must name at least one value, got none."),
        (["measure.repeats=3"], "measure.repeats must be an integer of at least 5, got 3."),
        (["measure.target_ms=-1"], "measure.target_ms must be a positive number, got -1."),
        (["tracking.mode=on"], "tracking.mode must be one of 'offline', 'online', 'disabled', got 'on'."),
        (["providers.names=[]"], "providers.names must name at least one provider, got none."),
        (["limit_minutes=0"], "limit_minutes must be a positive number, got 0."),
        (["limit_minutes=soon"], "limit_minutes must be a positive number, got 'soon'."),
        (["fail_fast=perhaps"], "fail_fast must be true or false, got 'perhaps'."),
        (["outputs=''"], "outputs must be the path of a folder, got ''."),
        (
            ["+measure.speed=1"],
            "measure.speed is unknown; the settings there are repeats, target_ms, warmup_ms, longest_call_s.",
        ),
        (["~experiment.mode"], "experiment.mode is missing; give it a value."),
        (["~measure"], "measure must be a mapping, got None."),
    ],
)
def test_a_wrong_setting_is_named_in_a_sentence(overrides, sentence):
    with pytest.raises(ConfigError) as raised:
        settings(*overrides)
    assert str(raised.value) == sentence


def test_an_unknown_provider_is_named():
    with pytest.raises(ConfigError, match=r"^providers.names must be one of 'ours', .*, got 'mine'\.$"):
        settings("providers.names=[ours,mine]")


def test_lengths_spell_out_counts():
    assert parse_lengths("1x5+3x2") == (5, 2, 2, 2)
    assert sorted(parse_lengths("5x1..9+1x4")) == [1, 3, 4, 5, 7, 9]
    assert sum(parse_lengths("4096x1..64")) == 4096 * 65 // 2 and parse_lengths("4096x1..64")[:4] == (41, 7, 16, 31)
    spaced = parse_lengths("32x1000..2147")
    assert sorted(spaced) == list(range(1000, 2148, 37)) != list(spaced)
    with pytest.raises(ConfigError, match=r"^T must be the sum of lengths '2x3', got 128\.$"):
        dataclasses.replace(CASE, lengths="2x3")


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 3080 Ti", "rtx_3080_ti"),
    ],
)
def test_auto_finds_the_preset_of_a_gpu(name, preset):
    assert overrides_for(Machine("cuda", name, 80.0), presets()) == [f"hardware={preset}"]


def test_a_gpu_is_known_by_its_own_identity(monkeypatch):
    gpus = [SimpleNamespace(name="NVIDIA H200", total_memory=139.8 * 2**30, uuid=uuid) for uuid in ("ab-1", "cd-2")]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_properties", gpus.__getitem__)
    assert these_machines() == [Machine("cuda", "NVIDIA H200", 139.8, uuid) for uuid in ("ab-1", "cd-2")]
    assert this_machine() == these_machines()[0]


def test_without_a_gpu_the_cpu_is_found(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert ask_these_machines() == [Machine("cpu")]


def test_auto_without_a_gpu_is_the_cpu():
    assert overrides_for(Machine("cpu"), presets()) == ["hardware=cpu"]


def test_auto_names_an_unknown_gpu_after_itself():
    machine = Machine("cuda", "NVIDIA L40S", 44.5, "uuid")
    made = settings(*overrides_for(machine, presets())).hardware
    assert made == Hardware("nvidia_l40s", "cuda", "NVIDIA L40S", 44.5)
    check(made, machine)


def test_a_preset_stops_on_another_machine():
    h100 = settings("hardware=h100").hardware
    check(h100, Machine("cuda", "NVIDIA H100 PCIe"))
    with pytest.raises(ConfigError) as raised:
        check(h100, Machine("cuda", "NVIDIA H200"))
    assert str(raised.value) == (
        "hardware=h100 expects a GPU whose name contains 'H100', but this one is 'NVIDIA H200'; "
        "take hardware=auto or the preset of this machine."
    )
    with pytest.raises(ConfigError) as raised:
        check(h100, Machine("cpu"))
    assert str(raised.value) == (
        "hardware=h100 expects a GPU whose name contains 'H100', but PyTorch sees no GPU here; "
        "take hardware=auto or the preset of this machine."
    )


def test_the_cpu_preset_runs_beside_a_gpu():
    check(settings("hardware=cpu").hardware, Machine("cuda", "NVIDIA H200"))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"name": "H 100", "device": "cuda"}, "hardware.name must be a lower-case word such as 'h100', got 'H 100'."),
        ({"name": "x", "device": "tpu"}, "hardware.device must be one of 'cuda', 'cpu', 'auto', got 'tpu'."),
        ({"name": "x", "device": "cuda", "memory_gib": 0}, "hardware.memory_gib must be a positive number, got 0."),
        (
            {"name": "x", "device": "cuda", "longest": {"forward": 0}},
            "hardware.longest.forward must be an integer of at least 1, got 0.",
        ),
    ],
)
def test_a_wrong_preset_is_named_in_a_sentence(values, sentence):
    with pytest.raises(ConfigError) as raised:
        Hardware(**values)
    assert str(raised.value) == sentence


def test_a_limit_of_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match=r"^a key of hardware.longest must be one of .*, got 'forwards'\.$"):
        Hardware("x", "cuda", longest={"forwards": 1})


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Measure().repeats = 1  # type: ignore[misc]


def test_help_names_every_choice_and_folder():
    shown = subprocess.run(
        [sys.executable, "-m", "experiments", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for group in ("experiment", "hardware", "measure", "tracking", "providers"):
        assert re.search(rf"^{group}: {', '.join(options(group))}$", shown, re.MULTILINE)
    for words in (
        "PATH/<stem>/<case>/record.json",
        "experiment=precision",
        "fail_fast: false",
        "limit_minutes: null",
        "collect",
    ):
        assert words in shown
    assert "Powered by Hydra" not in shown


def test_outputs_lie_in_the_project_unless_named():
    assert compose().outputs == os.environ["SCAN_OUTPUTS"]
    assert settings("outputs=/elsewhere").outputs == "/elsewhere"


@pytest.mark.parametrize("below", ["", "/more"])
@pytest.mark.parametrize("by", ["word", "variable"])
def test_a_folder_that_cannot_hold_records_is_said_before_anything_is_composed(tmp_path, below, by):
    file = tmp_path / "file"
    file.touch()
    outputs = f"{file}{below}"
    words, elsewhere = ([f"outputs={outputs}"], str(tmp_path)) if by == "word" else ([], outputs)
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "experiment=smoke", *words],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"SCAN_OUTPUTS": elsewhere},
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        f"error: expected a folder for records, but outputs={outputs} is none ({file}: it is a file): name another "
        "by outputs=PATH or by the environment variable SCAN_OUTPUTS.\n"
    )


@pytest.mark.parametrize(("named", "got"), [("null", None), ("", ""), ("''", ""), ("3", 3)])
def test_no_folder_is_made_where_none_is_named(tmp_path, named, got):
    root = Path("/")
    before = set(root.iterdir())
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "experiment=smoke", f"outputs={named}"],
        cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"error: outputs must be the path of a folder, got {got!r}.\n"
    # An empty name would be that of the root folder.
    assert not list(tmp_path.iterdir()) and set(root.iterdir()) == before


def test_a_folder_that_may_not_be_written_and_one_that_is_to_be_made(tmp_path, monkeypatch) -> None:
    assert store.unwritable(tmp_path / "new" / "folder") is None and not (tmp_path / "new").exists()
    monkeypatch.setattr(os, "access", lambda *_: False)
    said = store.unwritable(tmp_path / "new")
    assert said is not None and f"({tmp_path}: it may not be written)" in said
