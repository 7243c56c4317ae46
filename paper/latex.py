"""The PDFs: latexmk on the built sources, the same bytes every time."""

import os
import shutil
import subprocess
from pathlib import Path

INSTALL = "apt-get install texlive-latex-recommended texlive-fonts-recommended latexmk"
COMMAND = ("latexmk", "-gg", "-pdf", "-interaction=nonstopmode", "-halt-on-error", "-auxdir=aux")
DOCUMENTS = {"supplement": "supplement.tex", "paper": "main.tex"}
"""By name; the paper refers to tables of the supplement, which therefore comes first."""


class LatexError(RuntimeError):
    """LaTeX stopped; the message says where."""


def available() -> bool:
    """Whether this machine has latexmk."""
    return shutil.which("latexmk") is not None


def compile_pdfs(folder: Path, epoch: int) -> tuple[Path, Path]:
    """Compiles `paper.pdf` and `supplement.pdf` in `folder`, dated `epoch` (seconds since 1970)."""
    for name, source in DOCUMENTS.items():
        _compile(folder, name, source, epoch)
    return folder / "paper.pdf", folder / "supplement.pdf"


def _compile(folder: Path, name: str, source: str, epoch: int) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "FORCE_SOURCE_DATE": "1", "TZ": "UTC"}
    done = subprocess.run(
        [*COMMAND, f"-jobname={name}", source],
        cwd=folder, env=environment, capture_output=True, text=True, errors="replace",
    )  # fmt: skip
    if done.returncode:
        log = folder / "aux" / f"{name}.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else done.stderr.splitlines()
        found = [line for line in lines if line.startswith("!")] or lines[-1:] or ["no message"]
        raise LatexError(
            f"LaTeX stopped with {found[0].removeprefix('! ')!r}; {log} has the rest, and if a package is missing, "
            f"on Debian: {INSTALL}."
        )
