"""The image's verbs: `docker run IMAGE [reproduce | test | experiments | smoke | bash] [arguments]`."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import tempfile
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from container.driver import Unusable, check, driver_library

OUTPUTS = Path("/outputs")
USAGE, UNUSABLE = 2, 3
RUN = 'mkdir -p outputs && docker run --gpus all --user "$(id -u):$(id -g)" -v "$PWD/outputs:/outputs" linear-scan'
VERBS = {
    "reproduce": "measure and build the paper; without a GPU, build it from the stored results (the default)",
    "test": "run all tests, or what the arguments of pytest select",
    "experiments": "run a sweep: arguments as for python -m experiments",
    "smoke": "say in a minute whether this machine can reproduce",
    "bash": "open a shell, or run what its arguments say",
}
HELP = ("help", "--help", "-h")
WRITING = ("reproduce", "experiments")
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")


class NotPossible(RuntimeError):
    """The container cannot do what it was asked for; the message says what to type instead."""


def prepare_home(environment: MutableMapping[str, str], temporary: Path) -> str | None:
    """Give a user who has no home of his own one for caches, and a name; says so in one line.

    With `--user`, the home is `/` or somebody else's, and Triton, PyTorch, matplotlib, wandb and LaTeX write to theirs.
    """
    if "USER" not in environment and not _is_known(os.getuid()):
        environment["USER"] = f"uid{os.getuid()}"
    home = Path(environment.get("HOME") or "/")
    if home != Path("/") and os.access(home, os.W_OK | os.X_OK):
        return None
    own = temporary / f"linear-scan-home-{os.getuid()}"
    try:
        own.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        raise NotPossible(
            f"Neither the home {home} nor {temporary} can be written: add --tmpfs /tmp:exec to docker run."
        ) from None
    if own.stat().st_uid != os.getuid():
        raise NotPossible(f"{own} belongs to another user: remove it, or set HOME to a folder of your own with -e.")
    environment["HOME"] = str(own)
    return f"The home {home} cannot be written; caches are in {own} and end with the container."


def prepare_outputs(outputs: Path) -> None:
    """The folders that the image's links point to; raises where the volume cannot be written."""
    try:
        (outputs / "paper").mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=outputs / "paper"), tempfile.TemporaryFile(dir=outputs):
            return
    except OSError:
        raise NotPossible(
            f"{outputs} cannot be written by user {os.getuid()}. Make the folder first, and run as yourself:\n"
            f"  {RUN}\n"
            "A folder that Docker made by itself belongs to root; make it yours first:\n"
            '  sudo chown -R "$(id -u):$(id -g)" outputs'
        ) from None


def commands(verb: str, arguments: Sequence[str], gpu: bool) -> list[list[str]]:
    """What a verb runs, one after the other."""
    if verb == "bash":
        return [["bash", *arguments]]
    if verb == "test" and arguments:
        return [[*PYTEST, *arguments]]
    if verb == "test":
        # Two processes, as in the Makefile: one with Triton's interpreter cannot compile.
        interpreted = ["env", "TRITON_INTERPRET=1", *PYTEST, "-n", "2", "-m", "device or interpreter"]
        return [[*PYTEST, "-n", "2"], interpreted]
    if verb == "reproduce" and not gpu and not arguments:
        arguments = ["--figures-only"]
    module = "experiments" if verb == "experiments" else f"experiments.{verb}"
    return [[sys.executable, "-m", module, *arguments]]


def start(verb: str, arguments: Sequence[str]) -> int:
    """Check what the verb needs, say what was found, run it; the exit status."""
    listed = "\n".join(f"  {name:<12}{what}" for name, what in VERBS.items())
    if verb in HELP:
        print(f"The verbs of this image:\n{listed}")
        return 0
    if verb not in VERBS:
        raise NotPossible(f"{verb!r} is no verb of this image; its verbs are:\n{listed}")
    try:
        temporary = Path(tempfile.gettempdir())
    except FileNotFoundError:
        raise NotPossible(
            "No folder for temporary files can be written: add --tmpfs /tmp:exec to docker run."
        ) from None
    note = prepare_home(os.environ, temporary)
    if note:
        print(note, flush=True)
    if verb == "bash":
        os.execvp("bash", ["bash", *arguments])
    needs_gpu = "--figures-only" not in arguments
    gpu = check(driver_library()) if needs_gpu else None
    if verb in WRITING:
        prepare_outputs(OUTPUTS)
    if gpu:
        print(f"GPU: {gpu}.", flush=True)
    elif needs_gpu:
        print(no_gpu(verb, arguments), flush=True)
    statuses = [subprocess.run(command, check=False).returncode for command in commands(verb, arguments, bool(gpu))]
    if verb in WRITING:
        print(where(OUTPUTS, verb), flush=True)
    status = next((status for status in statuses if status), 0)
    # What a signal ended has its number negative here, and shells and Docker say 128 more than it.
    return status if status >= 0 else 128 - status


def no_gpu(verb: str, arguments: Sequence[str]) -> str:
    """What happens instead where no GPU is visible."""
    if verb == "reproduce" and not arguments:
        happens = (
            "Figures, tables and the PDF are built from the stored results, and nothing is measured. A smaller "
            "sweep of this CPU: reproduce --quick"
        )
    else:
        happens = f"Here {verb} runs on the CPU"
    return f"No GPU is visible in this container. {happens}. With a GPU:\n  {RUN}"


def where(outputs: Path, verb: str) -> str:
    """Where what was written is outside of the container."""
    if not outputs.is_mount():
        return f"All of it ends with this container, because no folder is mounted at {outputs}. To keep it:\n  {RUN}"
    paper = "; figures, tables and the PDF are in its folder paper" if verb == "reproduce" else ""
    return f"Outside of the container: records are in the folder that is mounted at {outputs}{paper}."


def _is_known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def end_when_stopped() -> None:
    """Handle docker stop: the first process of a container is not ended by a signal that it leaves alone."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def main(words: Sequence[str]) -> int:
    """Run the verb; 2 where it was called wrongly, 3 where the machine cannot run it, 128 and more after a signal."""
    verb, *arguments = words or ["reproduce"]
    try:
        return start(verb, arguments)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except NotPossible as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except Unusable as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE


if __name__ == "__main__":
    end_when_stopped()
    sys.exit(main(sys.argv[1:]))
