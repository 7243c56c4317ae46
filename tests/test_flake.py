"""The flake parses, evaluates and agrees with the lock, the image and the Makefile. Building it takes a network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLAKE = (ROOT / "flake.nix").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
LOCKED = json.loads((ROOT / "flake.lock").read_text())["nodes"]["nixpkgs"]

# Stands for nixpkgs: packages are names, and whatever takes packages forces every one of them.
STUB = """
{
  outputs = { self }: {
    legacyPackages.x86_64-linux = let
      named = name: derivation { inherit name; system = "x86_64-linux"; builder = "/bin/sh"; };
      forced = name: packages: text: derivation {
        inherit name text; system = "x86_64-linux"; builder = "/bin/sh"; packages = map toString packages;
      };
      path = sub: packages: builtins.concatStringsSep ":" (map (package: "${package}/${sub}") packages);
      listed = names: builtins.listToAttrs (map (name: { inherit name; value = named name; }) names);
    in listed [ "uv" "gcc" "gnumake" "git" "zlib" "ninja" "hadolint" "actionlint" ] // {
      lib = { makeLibraryPath = path "lib"; makeBinPath = path "bin"; };
      stdenv.cc.cc.lib = named "gcc-lib";
      texlive = listed [ "scheme-small" "latexmk" "collection-latexrecommended" "collection-fontsrecommended" ] // {
        combine = parts: forced "texlive" (builtins.attrValues parts) "";
      };
      python312 = named "python3.12" // {
        withPackages = choose: forced "python3.12-env" (choose (listed [ "matplotlib" "pandas" "pyyaml" ])) "";
      };
      mkShell = { packages, shellHook }:
        forced "shell" packages shellHook // { listed = map (package: package.name) packages; hook = shellHook; };
      writeShellScript = name: text: forced name [ ] text;
      runCommand = name: { nativeBuildInputs }: text: forced name nativeBuildInputs text;
    };
  };
}
"""


@pytest.fixture(scope="module")
def nix(tmp_path_factory: pytest.TempPathFactory):
    """Runs nix on a copy of the flake, with the stub in place of nixpkgs."""
    if not shutil.which("nix"):
        pytest.skip("nix is not installed")
    folder = tmp_path_factory.mktemp("flake")
    for name in ("stub", "copy"):
        (folder / name).mkdir()
    (folder / "stub" / "flake.nix").write_text(STUB)
    for name in ("flake.nix", "flake.lock"):
        shutil.copy(ROOT / name, folder / "copy" / name)
    store = {f"NIX_{kind}_DIR": str(folder / kind.lower()) for kind in ("STORE", "STATE", "LOG")}
    environment = os.environ | store | {"NIX_REMOTE": "local", "HOME": str(folder)}

    def run(*words: str) -> str:
        command = ["nix", "--extra-experimental-features", "nix-command flakes", *words]
        command += ["--override-input", "nixpkgs", f"path:{folder}/stub", "--no-write-lock-file"]
        done = subprocess.run(command, cwd=folder / "copy", env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_it_evaluates(nix) -> None:
    nix("flake", "check", "path:.", "--no-build")


@pytest.mark.parametrize(("shell", "more"), [("default", []), ("cuda", ["ninja"])])
def test_contents_of_a_shell(nix, shell: str, more: list[str]) -> None:
    listed = json.loads(nix("eval", "--json", f"path:.#devShells.x86_64-linux.{shell}.listed"))
    assert listed == ["python3.12", "uv", "gcc", "gnumake", "git", "texlive", *more]


@pytest.mark.parametrize("shell", ["default", "cuda"])
def test_hook_is_a_shell_script(nix, shell: str) -> None:
    hook = nix("eval", "--raw", f"path:.#devShells.x86_64-linux.{shell}.hook")
    checked = subprocess.run(["bash", "-n"], input=hook, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert ("--require-hashes" in hook) == (shell == "cuda")


def _driver_hook(
    folder: Path, place: str = "/usr/lib/x86_64-linux-gnu", **environment: str
) -> subprocess.CompletedProcess[str]:
    """What the hook leaves in the environment, on a host with `folder` at this place, and a driver nowhere else."""
    found = re.search(r"hostDriver = ''\n(.*?)\n {6}'';", FLAKE, re.S)
    assert found
    script = found[1].replace("''${", "${")
    for known in ("/run/opengl-driver/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib"):
        assert known in script
        script = script.replace(known, str(folder) if known == place else "/nonexistent")
    script = f'set -euo pipefail\n{script}\necho "${{TRITON_LIBCUDA_PATH-none}} ${{LD_LIBRARY_PATH-none}}"'
    inherited = {"PATH": os.environ["PATH"]} | environment
    return subprocess.run(["bash", "-c", script], env=inherited, capture_output=True, text=True, check=True)


def test_only_the_driver_of_the_host_is_linked(tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.mkdir()
    for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libc.so.6"):
        (host / name).touch()
    done = _driver_hook(host, TMPDIR=str(tmp_path), LD_LIBRARY_PATH="/before")
    links = tmp_path / f"linear-scan-driver-{os.getuid()}"
    assert done.stdout == f"{links} {links}:/before\n"
    assert sorted(link.name for link in links.iterdir()) == ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so"]
    assert (links / "libcuda.so.1").resolve() == host / "libcuda.so.1"


@pytest.mark.parametrize("place", ["/run/opengl-driver/lib", "/usr/lib/wsl/lib"], ids=["NixOS", "WSL"])
def test_a_folder_of_the_driver_alone_is_taken_whole(tmp_path: Path, place: str) -> None:
    (tmp_path / "libcuda.so.1").touch()
    done = _driver_hook(tmp_path, place, TMPDIR=str(tmp_path))
    assert done.stdout == f"{tmp_path} {tmp_path}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["libcuda.so.1"]


def test_without_a_driver_nothing_is_set(tmp_path: Path) -> None:
    done = _driver_hook(tmp_path)
    assert done.stdout == "none none\n"
    assert done.stderr == "No NVIDIA driver was found on this host: tests and figures work, GPU measurements do not.\n"


def test_nixpkgs_is_locked_to_a_commit() -> None:
    url = re.search(r'inputs\.nixpkgs\.url = "github:(\w+)/(\w+)/([\w.-]+)"', FLAKE)
    assert url
    assert LOCKED["original"] == {"type": "github", "owner": url[1], "repo": url[2], "ref": url[3]}
    assert re.fullmatch(r"[0-9a-f]{40}", LOCKED["locked"]["rev"])
    assert re.fullmatch(r"sha256-[A-Za-z0-9+/]{43}=", LOCKED["locked"]["narHash"])


def test_it_installs_the_images_lock_with_its_python() -> None:
    assert "python3.12 -m venv" in (ROOT / "Dockerfile").read_text()
    assert set(re.findall(r"pkgs\.(python\d+)", FLAKE)) == {"python312"}
    for name in re.findall(r"requirements/[\w.]+txt", FLAKE):
        assert (ROOT / name).is_file(), name
    for install in re.findall(r"uv pip install(?:.*\\\n)*.*", FLAKE):
        assert "--require-hashes" in install and "--no-deps" in install


def test_its_commands_are_verbs_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    verbs = re.findall(r'command "(\w+)"', FLAKE)
    assert verbs == ["reproduce", "test"]
    for verb in verbs:
        assert re.search(rf"^{verb}:", makefile, re.M)


def test_check_of_the_paper_has_what_the_paper_imports() -> None:
    from importlib.metadata import packages_distributions

    found = re.search(r"withPackages \(packages: \[ (.*?) \]\)", FLAKE)
    assert found
    given = {name.removeprefix("packages.") for name in found[1].split()}
    imported, distributions = set(), packages_distributions()  # which looks through all that is installed
    for file in (ROOT / "paper").rglob("*.py"):
        for line in re.findall(r"^\s*(?:import|from) (\w+)", file.read_text(), re.M):
            imported |= {name.lower() for name in distributions.get(line, [])}
    assert imported - {PROJECT} == given


def test_check_of_the_workflows_names_their_configuration() -> None:
    (found,) = re.findall(r"-config-file \$\{self\}/(\S+)", FLAKE)
    assert (ROOT / found).is_file()
