"""The PDF: latexmk on the built sources, the same bytes every time."""

import os
import shutil
import subprocess
from pathlib import Path

INSTALL = "apt-get install texlive-latex-recommended texlive-fonts-recommended latexmk"
COMMAND = ("latexmk", "-gg", "-pdf", "-interaction=nonstopmode", "-halt-on-error", "-auxdir=aux", "-jobname=paper")


class LatexError(RuntimeError):
    """LaTeX stopped; the message says where."""


def available() -> bool:
    """Whether this machine has latexmk."""
    return shutil.which("latexmk") is not None


def compile_pdf(folder: Path, epoch: int) -> Path:
    """Compiles `folder/main.tex` into `folder/paper.pdf`, dated `epoch` (seconds since 1970)."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "FORCE_SOURCE_DATE": "1", "TZ": "UTC"}
    done = subprocess.run(
        [*COMMAND, "main.tex"], cwd=folder, env=environment, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        log = folder / "aux" / "paper.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else done.stderr.splitlines()
        found = [line for line in lines if line.startswith("!")] or lines[-1:] or ["no message"]
        raise LatexError(
            f"LaTeX stopped with {found[0].removeprefix('! ')!r}; {log} has the rest, and if a package is missing, "
            f"on Debian: {INSTALL}."
        )
    return folder / "paper.pdf"
