"""The image: its lock is complete and agrees with everything that names a version; its entry point says what to do."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from container import __main__ as entry
from container import driver
from paper.latex import INSTALL

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIN = re.compile(r"^([\w.-]+)==([\w.]+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.M)


def _lock(name: str) -> dict[str, str]:
    """Package and version of every pin; every other line must be a comment."""
    text = (ROOT / "requirements" / name).read_text()
    rest = PIN.sub("", text)
    assert [line for line in rest.splitlines() if line and not line.startswith("#")] == []
    return {match[1]: match[2] for match in PIN.finditer(text)}


LOCK = _lock("image.txt")


def _wanted(requirement: str) -> tuple[str, str]:
    """Normalised name and specifier of a requirement, without extras and markers."""
    match = re.match(r"([\w.-]+)(?:\[[\w,]+\])?\s*([<>=!~][^;]*)?", requirement)
    assert match, requirement
    return re.sub(r"[-_.]+", "-", match[1]).lower(), (match[2] or "").strip()


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _allows(specifier: str, version: str) -> bool:
    """The few specifiers that the project uses."""
    if not specifier:
        return True
    operator, bound = re.fullmatch(r"(==|>=|<)\s*([\w.*]+)", specifier).groups()  # type: ignore[union-attr]
    if bound.endswith(".*"):
        return version.startswith(bound.removesuffix("*"))
    ours, theirs = _numbers(version), _numbers(bound)
    return {"==": version == bound, ">=": ours >= theirs, "<": ours < theirs}[operator]


WANTED = [
    *PROJECT["dependencies"],
    *PROJECT["optional-dependencies"]["experiments"],
    *PROJECT["optional-dependencies"]["test"],
    *(line for line in (ROOT / "requirements" / "image.in").read_text().splitlines() if line and line[0] != "#"),
]


@pytest.mark.parametrize("requirement", WANTED)
def test_lock_satisfies(requirement: str) -> None:
    name, specifier = _wanted(requirement)
    assert name in LOCK and _allows(specifier, LOCK[name]), (requirement, LOCK.get(name))


@pytest.mark.parametrize(
    ("specifier", "version", "allowed"),
    [("==1.2", "1.2", True), ("==1.2", "1.20", False), (">=2.10", "2.9", False), ("<82", "81.0", True),
     ("==13.0.*", "13.0.88", True), ("==13.0.*", "13.5.37", False)],
)  # fmt: skip
def test_specifiers_are_understood(specifier: str, version: str, allowed: bool) -> None:
    assert _allows(specifier, version) is allowed


def test_lock_is_what_its_requirements_need() -> None:
    """Every package of the lock is wanted by the project or by another one in it, as far as they are installed here."""
    from importlib.metadata import PackageNotFoundError, requires

    open_names, needed = [_wanted(requirement)[0] for requirement in WANTED], set()
    while open_names:
        name = open_names.pop()
        if name in needed:
            continue
        needed.add(name)
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            continue
        unconditional = [line for line in lines if ";" not in line]
        missing = [line for line in unconditional if _wanted(line)[0] not in LOCK]
        assert missing == [], f"{name} needs them"
        open_names += [_wanted(line)[0] for line in unconditional]


def test_triton_for_code_generation_is_that_of_the_image() -> None:
    """So that the image's verb `test` needs no third run for it, as `make test` does elsewhere."""
    text = (ROOT / "requirements" / "codegen.txt").read_text()
    assert re.findall(r"^triton==(.*)$", text, re.M) == [LOCK["triton"]]


def test_build_lock_is_part_of_the_lock() -> None:
    build = _lock("image.build.txt")
    assert build and build.items() <= LOCK.items()


def test_cuda_is_one_version_everywhere() -> None:
    base = re.search(r"^ARG BASE_IMAGE=(\S+)$", DOCKERFILE, re.M)
    assert base
    found = re.fullmatch(r"nvidia/cuda:(\d+\.\d+)\.\d+-devel-ubuntu24\.04@sha256:[0-9a-f]{64}", base[1])
    assert found, base[1]
    cuda = ".".join(map(str, driver.CUDA))
    assert found[1] == cuda
    assert LOCK["cuda-toolkit"].startswith(f"{cuda}.") and LOCK["nvidia-cuda-runtime"].startswith(f"{cuda}.")
    readme = (ROOT / "README.md").read_text()
    assert re.search(rf"PyTorch \| {re.escape(LOCK['torch'])}, CUDA {re.escape(cuda)} \|", readme)
    assert re.search(rf"Triton \| {re.escape(LOCK['triton'])} \|", readme)
    assert f"driver {driver.DRIVER}" in (ROOT / "docs" / "container.md").read_text()


def test_dockerfile_installs_from_the_locks_alone() -> None:
    installs = re.findall(r"pip install (?:[^&]|\n)*?(?=&&|$)", DOCKERFILE)
    assert len(installs) == 2
    for install in installs:
        assert "--require-hashes" in install and "--no-deps" in install
    assert [re.search(r"image[.\w]*txt", install)[0] for install in installs] == ["image.build.txt", "image.txt"]  # type: ignore[index]


def test_dockerfile_has_the_latex_that_the_paper_names() -> None:
    assert set(INSTALL.split()[2:]) <= set(DOCKERFILE.split())


def test_warp_is_compiled_for_the_gpus_of_the_paper() -> None:
    found = re.search(r'TORCH_CUDA_ARCH_LIST="([^"]+)"', DOCKERFILE)
    assert found
    assert found[1].split(";") == ["8.0", "8.6", "9.0+PTX"]
    assert found[1].split(";")[0] == ".".join(map(str, driver.CAPABILITY))


def test_dockerignore_keeps_what_is_measured() -> None:
    ignored = {line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"}
    assert {".git", "outputs", "**/build"} <= ignored
    assert not ignored & {"scan", "experiments", "conf", "paper", "tests", "container", "requirements"}


class Driver:
    """What libcuda answers."""

    def __init__(self, cuda: int = 13000, init: int = 0, capability: tuple[int, int] = (9, 0)) -> None:
        self.cuda, self.init, self.capability = cuda, init, capability

    def cuDriverGetVersion(self, number: object) -> int:
        number._obj.value = self.cuda  # type: ignore[attr-defined]
        return 0

    def cuInit(self, flags: int) -> int:
        return self.init

    def cuDeviceGetAttribute(self, value: object, attribute: int, device: int) -> int:
        value._obj.value = self.capability[attribute - 75]  # type: ignore[attr-defined]
        return 0

    def cuDeviceGetName(self, text: ctypes.Array[ctypes.c_char], size: int, device: int) -> int:
        text.value = b"NVIDIA Test"
        return 0


@pytest.fixture
def version_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "version"
    path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n")
    monkeypatch.setattr(driver, "VERSION_FILE", path)
    return path


def test_a_good_gpu_is_named(version_file: Path) -> None:
    assert driver.check(Driver()) == (  # type: ignore[arg-type]
        "NVIDIA Test, compute capability 9.0, driver (535.104.05) for CUDA 13.0"
    )


@pytest.mark.parametrize("library", [None, Driver(init=100)], ids=["no driver", "no device"])
def test_no_gpu_is_no_error(library: ctypes.CDLL | None) -> None:
    assert driver.check(library) is None


OTHERWISE = "or run without --gpus, which builds the paper from its stored results."


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        (
            Driver(cuda=12020),
            "The NVIDIA driver of this machine (535.104.05) supports CUDA 12.2, and this image needs 13.0: "
            f"install driver 580 or newer on the host, {OTHERWISE}",
        ),
        (
            Driver(init=804),
            "The NVIDIA driver of this machine is too old for this image: install version 580 or newer on the host, "
            + OTHERWISE,
        ),
        (
            Driver(init=803),
            f"The NVIDIA driver of this machine was updated while it ran: restart the host, {OTHERWISE}",
        ),
        (
            Driver(init=999),
            f"The NVIDIA driver of this machine answers error 999: see if nvidia-smi works there, {OTHERWISE}",
        ),
        (
            Driver(capability=(7, 5)),
            "The kernels need a GPU of compute capability 8.0 or newer (A100, RTX 30 and later), and NVIDIA Test has "
            f"7.5: choose another one with --gpus device=N, {OTHERWISE}",
        ),
    ],
    ids=["old driver", "compatibility", "updated", "unknown", "old GPU"],
)
def test_an_unusable_gpu_ends_with_the_fix(
    answers: Driver, sentence: str, version_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(entry, "driver_library", lambda: answers)
    assert entry.main(["reproduce"]) == 3
    assert capsys.readouterr().err == f"error: {sentence}\n"


def test_devices_without_a_library_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(driver.ctypes, "CDLL", none)
    monkeypatch.setattr(driver, "CONTROL_DEVICE", tmp_path / "nvidiactl")
    assert driver.driver_library() is None
    (tmp_path / "nvidiactl").touch()
    with pytest.raises(
        driver.Unusable, match=r"install the NVIDIA Container Toolkit on the host and run with --gpus all"
    ):
        driver.driver_library()


def test_a_home_that_can_be_written_stays(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "USER": "somebody"}
    assert entry.prepare_home(environment, tmp_path) is None
    assert environment == {"HOME": str(tmp_path), "USER": "somebody"}


@pytest.mark.parametrize("home", ["/", "/nonexistent"])
def test_another_home_is_made(tmp_path: Path, home: str) -> None:
    environment = {"HOME": home}
    own = tmp_path / f"linear-scan-home-{os.getuid()}"
    assert entry.prepare_home(environment, tmp_path) == (
        f"The home {home} cannot be written; caches are in {own} and end with the container."
    )
    assert environment["HOME"] == str(own) and own.stat().st_mode & 0o777 == 0o700
    assert entry.prepare_home({"HOME": home}, tmp_path), "a second start finds it made"


def test_a_user_without_a_name_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "_is_known", lambda uid: False)
    environment = {"HOME": str(tmp_path)}
    entry.prepare_home(environment, tmp_path)
    assert environment["USER"] == f"uid{os.getuid()}"


def test_nowhere_to_write_is_said(tmp_path: Path) -> None:
    temporary = tmp_path / "missing"
    with pytest.raises(entry.NotPossible) as raised:
        entry.prepare_home({"HOME": "/nonexistent"}, temporary)
    assert str(raised.value) == (
        f"Neither the home /nonexistent nor {temporary} can be written: add --tmpfs /tmp:exec to docker run."
    )


def test_a_file_system_without_a_folder_to_write_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(entry.tempfile, "gettempdir", nowhere)
    assert entry.main(["reproduce"]) == 2
    assert capsys.readouterr().err == (
        "error: No folder for temporary files can be written: add --tmpfs /tmp:exec to docker run.\n"
    )


def test_outputs_that_cannot_be_written_are_answered_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    # A file where a folder is expected, because root writes to any folder.
    outputs = tmp_path / "outputs"
    outputs.touch()
    monkeypatch.setattr(entry, "OUTPUTS", outputs)
    monkeypatch.setattr(entry, "driver_library", lambda: None)
    assert entry.main(["reproduce"]) == 2
    assert capsys.readouterr().err == (
        f"error: {outputs} cannot be written by user {os.getuid()}. Make the folder first, and run as yourself:\n"
        '  mkdir -p outputs && docker run --gpus all --user "$(id -u):$(id -g)" '
        '-v "$PWD/outputs:/outputs" linear-scan\n'
        "A folder that Docker made by itself belongs to root; make it yours first:\n"
        '  sudo chown -R "$(id -u):$(id -g)" outputs\n'
    )


def test_the_command_is_the_documented_one() -> None:
    for name in ("README.md", "docs/container.md"):
        assert entry.RUN in (ROOT / name).read_text(), name


@pytest.mark.parametrize(
    ("words", "gpu", "modules"),
    [
        (["reproduce"], True, ["-m experiments.reproduce"]),
        (["reproduce"], False, ["-m experiments.reproduce --figures-only"]),
        (["reproduce", "--quick"], False, ["-m experiments.reproduce --quick"]),
        (["experiments", "experiment=smoke"], True, ["-m experiments experiment=smoke"]),
        (["smoke"], False, ["-m experiments.smoke"]),
        (["test", "tests/paper", "-x"], False, ["-m pytest -p no:cacheprovider tests/paper -x"]),
        (
            ["test"],
            False,
            [
                "-m pytest -p no:cacheprovider -n 2",
                "TRITON_INTERPRET=1 PYTHON -m pytest -p no:cacheprovider -n 2 -m device or interpreter",
            ],
        ),
    ],
)
def test_what_a_verb_runs(words: list[str], gpu: bool, modules: list[str]) -> None:
    ran = [" ".join(command).replace(sys.executable, "PYTHON") for command in entry.commands(words[0], words[1:], gpu)]
    assert [command.removeprefix("PYTHON ").removeprefix("env ") for command in ran] == modules


def test_the_first_failure_is_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "OUTPUTS", tmp_path)
    monkeypatch.setattr(entry, "driver_library", lambda: None)
    statuses = iter([0, 5])
    monkeypatch.setattr(
        entry.subprocess, "run", lambda command, check: subprocess.CompletedProcess(command, next(statuses))
    )
    assert entry.main(["test"]) == 5


@pytest.mark.parametrize(
    ("ending", "wanted"),
    [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("os.kill(os.getppid(), 15); time.sleep(30)", 143),
     ("os.kill(os.getppid(), 2); time.sleep(30)", 130)],
    ids=["exit", "killed", "docker stop", "Ctrl-C"],
)  # fmt: skip
def test_the_exit_status_after_a_signal(tmp_path: Path, ending: str, wanted: int) -> None:
    """In a process of its own, which gets the signals. What the verb runs is replaced, not how."""
    (tmp_path / "verb.py").write_text(f"import os, sys, time\n{ending}\n")
    script = (
        "import sys; from container import __main__ as entry; entry.driver_library = lambda: None\n"
        f"entry.commands = lambda *_: [[sys.executable, {str(tmp_path / 'verb.py')!r}]]\n"
        "entry.end_when_stopped(); sys.exit(entry.main(['smoke']))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (wanted, "")


def test_without_a_gpu_it_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(entry, "OUTPUTS", tmp_path)
    monkeypatch.setattr(entry, "driver_library", lambda: None)
    monkeypatch.setattr(entry.subprocess, "run", lambda command, check: subprocess.CompletedProcess(command, 0))
    assert entry.main([]) == 0
    shown = capsys.readouterr().out
    assert "No GPU is visible in this container. Figures, tables and the PDF are built from the stored" in shown
    assert entry.RUN in shown


def test_results_without_a_volume_are_said_to_be_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert entry.where(tmp_path, "reproduce") == (
        f"All of it ends with this container, because no folder is mounted at {tmp_path}. To keep it:\n  {entry.RUN}"
    )
    monkeypatch.setattr(Path, "is_mount", lambda self: True)
    mounted = f"Outside of the container: records are in the folder that is mounted at {tmp_path}"
    assert entry.where(tmp_path, "experiments") == f"{mounted}."
    assert entry.where(tmp_path, "reproduce") == f"{mounted}; figures, tables and the PDF are in its folder paper."


@pytest.mark.parametrize("word", entry.HELP)
def test_help_lists_the_verbs(word: str, capsys: pytest.CaptureFixture) -> None:
    assert entry.main([word]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == list(entry.VERBS)


def test_an_unknown_verb_lists_the_verbs(capsys: pytest.CaptureFixture) -> None:
    assert entry.main(["figures"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: 'figures' is no verb of this image; its verbs are:\n  reproduce ")
    assert [line.split()[0] for line in shown.splitlines()[1:]] == list(entry.VERBS)
