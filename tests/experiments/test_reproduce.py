"""One command measures what suits the machine, builds the paper and says what came out and what did not."""

import re
import subprocess
import sys
from itertools import islice

import pytest

from experiments import processes, reproduce, store
from experiments.config import ConfigError
from experiments.hardware import Machine
from experiments.records import tidy
from experiments.summary import (
    bidirectional_lines,
    few_rows_lines,
    layouts_lines,
    packing_lines,
    precision_lines,
    speed_lines,
    unmeasured_lines,
)


def speed_record(T, mode, dtype="float32", lengths="", directions="causal", **medians):
    case = {"stem": "speed", "level": "api", "mode": mode, "dtype": dtype, "B": 1, "C": 64, "T": T}
    case |= {"reverse": False, "lengths": lengths, "directions": directions}
    providers = {name: {"status": "ok", "reason": None, "samples_ms": [ms]} for name, ms in medians.items()}
    providers["warp"] = {"status": "unsupported", "reason": "it needs a GPU."}
    return wrap(case, providers)


def precision_record(T, dtype, gates="uniform_0_1", **factors):
    case = {"stem": "precision", "level": "", "mode": "forward_backward", "dtype": dtype, "B": 1, "C": 4, "T": T}
    case["gates"] = gates
    errors = {name: {"states": {"rmse": [factor, factor], "rounding_rmse": [1, 1]}} for name, factor in factors.items()}
    providers = {name: {"status": "ok", "errors": each} for name, each in errors.items()}
    return wrap(case, providers | {"warp": {"status": "unsupported", "reason": "it needs a GPU."}})


def wrap(case, providers):
    return {
        "schema": 1,
        "stem": case["stem"],
        "hardware": "cpu",
        "case_id": "-".join(map(str, case.values())),
        "case": case,
        "providers": providers,
        "protocol": {},
        "provenance": {"gpu": None, "cpu": "A CPU"},
        "key": "k",
    }


SPEED = [
    speed_record(128, "forward", ours=0.2, ref=0.1, roofline=0.01),
    speed_record(4096, "forward", ours=1.0, ref=2.0, sequential=9.0, roofline=0.5),
    speed_record(4096, "forward_backward", ours=3.0, ref=4.0, roofline=0.5),
]
PRECISION = [
    precision_record(128, "float32", ours=1.5, ref=1.2),
    precision_record(512, "float32", ours=1.1, ref=1.6),
    precision_record(512, "float16", gates="uniform_099_1", ours=1.0),
]


def test_the_table_of_times():
    SPEED[1]["providers"]["sequential"]["status"] = "wrong"
    assert list(speed_lines(tidy(SPEED))) == [
        "Milliseconds a call on A CPU: float32, B=1, C=64, T=4096",
        "                             forward        both",
        "  ours                             1           3",
        "  ref                              2           4",
        "  sequential *                     9           -",
        "  * outside its error budget in one of these cases",
        "  ours is the fastest in 2 of 3 cases of all sizes, dtypes and modes",
    ]


def test_the_table_of_errors():
    assert list(precision_lines(tidy(PRECISION))) == [
        "Error of states; 1 = the exact result rounded once (mean over draws, at the worst T)",
        "  gates                       [0, 1)   [0.99, 1)",
        "                             float32     float16",
        "  ours                           1.5           1",
        "  ref                            1.6           -",
    ]


def test_the_table_of_packings():
    packed = [
        speed_record(T, "forward", lengths=lengths, ours=ms, roofline=ms / 2)
        for lengths, T, ms in (("1x4096", 4096, 8.192), ("128x1..64", 4160, 8.32))
    ]
    assert list(packing_lines(tidy(packed))) == [
        "Packed sequences on A CPU: float32, B=1, C=64",
        "  count x length                 direction    tokens        ms  ns a token  of roofline",
        "  1x4096                       api forward      4096      8.19       2e+03          0.5",
        "  128x1..64                    api forward      4160      8.32       2e+03          0.5",
    ]


def test_the_tables_of_shapes():
    records = [
        speed_record(4096, "forward", ours=8.0, roofline=4.0),
        speed_record(512, "backward", directions="shared_sum", ours=3.0),
        speed_record(512, "backward", dtype="bfloat16", ours=3.0),
    ]
    for lines, title in ((layouts_lines, "Channels last"), (few_rows_lines, "Few rows")):
        assert list(lines(tidy(records[:1]))) == [
            f"{title} on A CPU: B x C x T",
            "  case                                                 direction        ms  of roofline",
            "  1 x 64 x 4096 float32                              api forward         8          0.5",
        ]
    assert list(bidirectional_lines(tidy(records)))[-1] == (
        "  1 x 64 x 512 float32 shared_sum                   api backward         3            -"
    )
    assert list(layouts_lines(tidy([speed_record(128, "forward")]))) == []


def test_providers_without_a_result_say_why():
    assert list(unmeasured_lines(tidy(SPEED + PRECISION))) == ["warp: it needs a GPU."]


def test_no_records_make_no_lines():
    empty = tidy([speed_record(128, "forward")])
    assert list(speed_lines(empty)) == list(precision_lines(empty)) == []


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """The commands that a run starts; what each returns can be set by a word of it."""
    commands, ends = [], {}
    monkeypatch.setattr(reproduce, "OUTPUTS", tmp_path / "outputs")
    monkeypatch.setattr(reproduce, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(reproduce, "BUILD", tmp_path / "build")
    (tmp_path / "results" / "h200").mkdir(parents=True)
    (tmp_path / "results" / "published").mkdir()
    monkeypatch.setattr(reproduce, "stems", lambda: ["speed", "precision"])
    monkeypatch.setattr(reproduce, "ask_these_machines", lambda: [Machine("cpu")])
    monkeypatch.setattr(reproduce.shutil, "which", lambda name: None)

    def run(command):
        commands.append(command[1:])
        if "experiment=speed" in command:
            for record in SPEED:
                store.write(tmp_path / "outputs" / "speed" / record["case_id"] / "record.json", record)
        end = next((status for word, status in ends.items() if word in command), 0)
        if isinstance(end, BaseException):
            raise end
        return end

    monkeypatch.setattr(processes, "run", run)
    return commands, ends


def test_a_cpu_measures_every_sweep_builds_the_paper_and_judges_the_claims(steps, tmp_path, capsys):
    commands, _ = steps
    assert reproduce.main([]) == 0
    results, outputs, build = (str(tmp_path / name) for name in ("results", "outputs", "build"))
    assert commands == [
        ["-m", "experiments", "experiment=speed", "hardware=cpu", f"outputs={outputs}"],
        ["-m", "experiments", "experiment=precision", "hardware=cpu", f"outputs={outputs}"],
        ["-m", "paper", "--results", results, "--out", build, "--also", outputs],
        ["-m", "paper.report", "--results", results, "--outputs", outputs],
        ["-m", "paper.claims", "--from", "outputs", "--results", results, "--outputs", outputs],
    ]
    shown = capsys.readouterr().out
    assert "ours is the fastest in 2 of 3 cases" in shown
    assert (
        "No GPU was measured, because PyTorch sees none here; the report shows those of h200 from paper/results.\n"
    ) in shown
    assert "No PDF was typeset, because latexmk is not installed.\n" in shown
    assert "No result: warp: it needs a GPU.\n" in shown
    assert shown.splitlines()[-3:] == [
        "== Where everything is",
        f"Report: {tmp_path / 'outputs' / 'report' / 'index.html'}",
        f"Figures and tables: {tmp_path / 'build'}",
    ]


def test_a_gpu_measures_the_papers_sweeps(steps, monkeypatch, tmp_path, capsys):
    commands, _ = steps
    monkeypatch.setattr(reproduce, "ask_these_machines", lambda: [Machine("cuda", "NVIDIA H200")] * 2)
    monkeypatch.setattr(reproduce.shutil, "which", lambda name: f"/bin/{name}")
    assert reproduce.main([]) == 0
    assert [command[3] for command in commands[:2]] == ["hardware=auto"] * 2
    shown = capsys.readouterr().out
    assert "Milliseconds a call" not in shown, "records of another device are not this machine's"
    assert "== What could not be done here\nNothing was left out.\n" in shown
    build = tmp_path / "build"
    assert shown.splitlines()[-1] == f"PDF: {build / 'paper.pdf'}, and every case: {build / 'supplement.pdf'}"


def test_quick_measures_less_in_limited_time_and_says_so(steps, capsys, monkeypatch):
    commands, _ = steps
    assert reproduce.main(["--quick"]) == 0
    sweeps = commands[:2]
    assert all("measure=quick" in sweep for sweep in sweeps) and "experiment.draws=8" in sweeps[1]
    assert [sweep[-1] for sweep in sweeps] == ["limit_minutes=4.0", "limit_minutes=8.0"]
    shown = capsys.readouterr().out
    assert "because --quick asked for it" in shown and "no time left" not in shown


def test_a_sweep_that_ran_out_of_time_is_named(steps, capsys, monkeypatch):
    commands, _ = steps
    monkeypatch.setattr(reproduce.time, "monotonic", lambda: 300 * len(commands))
    assert reproduce.main(["--quick"]) == 0
    assert [sweep[-1] for sweep in commands[:2]] == ["limit_minutes=4.0", "limit_minutes=3.0"]
    said = "The sweep {} had no time left after 5 min; its own lines above say what it left.\n"
    shown = capsys.readouterr().out
    assert said.format("speed") in shown and said.format("precision") in shown


@pytest.mark.parametrize("alone", [0, 1, 6, 9])
@pytest.mark.parametrize("at_a_time", [1, 2, 3, 4, 16])
def test_quick_ends_in_time_however_many_sweeps_run_at_a_time(monkeypatch, at_a_time, alone):
    now = 0.0
    monkeypatch.setattr(reproduce.time, "monotonic", lambda: now)
    monkeypatch.setattr(reproduce, "sweep_command", lambda *given: [])
    jobs = reproduce.sweeps([str(number) for number in range(9)], Machine("cuda"), True, at_a_time, alone)
    for phase, most in ((islice(jobs, 9 - alone), at_a_time), (jobs, 1)):
        ends: list[float] = []
        while True:
            while len(ends) < most and (job := next(phase, None)):
                assert job.limit_minutes
                ends.append(now + 60 * job.limit_minutes)
            if not ends:
                break
            now = min(ends)
            ends.remove(now)
    assert now == pytest.approx(60 * reproduce.QUICK_MINUTES)


def test_figures_only_measures_nothing_and_asks_no_machine(steps, tmp_path, monkeypatch, capsys):
    commands, _ = steps
    monkeypatch.setattr(reproduce, "ask_these_machines", lambda: pytest.fail("PyTorch was asked"))
    assert reproduce.main(["--figures-only"]) == 0
    assert [command[1] for command in commands] == ["paper", "paper.report", "paper.claims"]
    assert "--also" not in commands[0] and commands[2][2:4] == ["--from", "paper"]
    assert "Nothing was measured, because --figures-only asked for it.\n" in capsys.readouterr().out


def test_figures_only_shows_what_was_measured_before(steps):
    commands, _ = steps
    assert reproduce.main([]) == reproduce.main(["--figures-only"]) == 0
    assert "--also" in commands[-3] and commands[-1][2:4] == ["--from", "outputs"]


def test_figures_only_needs_no_torch_triton_hydra_or_wandb(tmp_path):
    blocked = ("torch", "triton", "hydra", "omegaconf", "wandb", "scan")
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
        "from experiments import processes, reproduce\n"
        "processes.run = lambda command: print('ran', command[2]) or 0\n"
        "sys.exit(reproduce.main(['--figures-only']))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=reproduce.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^ran (.*)$", done.stdout, re.M) == ["paper", "paper.report", "paper.claims"]


@pytest.mark.parametrize(
    ("word", "status", "said"),
    [
        ("experiment=speed", 1, "The sweep speed ended with exit status 1; its own lines above say why.\n"),
        ("experiment=speed", -9, "The sweep speed ended with exit status -9; its own lines above say why.\n"),
        ("paper.claims", 1, "== The claims: 0 s, exit status 1\n"),
    ],
)
def test_a_failed_step_or_claim_shows_in_the_exit_status_and_stops_nothing(steps, capsys, word, status, said):
    commands, ends = steps
    ends |= {word: status}
    assert reproduce.main([]) == 1
    assert len(commands) == 5
    assert said in capsys.readouterr().out


def test_an_interruption_is_said(steps, capsys):
    _, ends = steps
    ends |= {"experiment=precision": KeyboardInterrupt()}
    assert reproduce.main([]) == 130
    assert capsys.readouterr().err == "Interrupted; the same command goes on from here.\n"


def test_a_machine_that_cannot_be_asked_is_said(steps, monkeypatch, capsys):
    def fail():
        raise ConfigError("The device of this machine could not be asked for (no torch); name it, as in hardware=cpu.")

    monkeypatch.setattr(reproduce, "ask_these_machines", fail)
    assert reproduce.main([]) == 2
    assert capsys.readouterr().err == (
        "error: The device of this machine could not be asked for (no torch); name it, as in hardware=cpu.\n"
    )


def test_experiments_are_measured_in_the_order_of_their_claims(monkeypatch, tmp_path):
    claims = tmp_path / "claims.yaml"
    claims.write_text("claims: [{stem: precision}, {stem: speed}, {stem: precision}]")
    monkeypatch.setattr(reproduce, "CLAIMS", claims)
    found = reproduce.stems()
    assert found[:2] == ["precision", "speed"]
    configured = {file.stem for file in (reproduce.ROOT / "conf" / "experiment").glob("*.yaml")}
    assert set(found) == configured - {"smoke", "tuning"}


def test_an_experiment_without_lines_of_its_own_is_counted():
    assert reproduce.summary_lines("speed", tidy(SPEED)) != reproduce.summary_lines("other", tidy(SPEED))
    assert list(reproduce.summary_lines("other", tidy(SPEED))) == ["other: 3 cases"]


def test_quick_settings_exist():
    hydra = pytest.importorskip("hydra")
    assert hydra
    from experiments.compose import compose, settings_of

    for stem in reproduce.stems():
        words = reproduce.sweep_command(stem, Machine("cpu"), 1.5)[3:]
        settings = settings_of(compose(*words), words)
        assert settings.experiment.cases() and settings.limit_minutes == 1.5
    assert set(reproduce.QUICK) <= set(reproduce.stems())
