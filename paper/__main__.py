"""`python -m paper`: figures, tables, numbers, the paper and its supplement from stored results."""

import argparse
import importlib
import pkgutil
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from paper import brief, claims, figures, latex, numbers, tables
from paper.measurements import Measurements, ResultsError, gather
from paper.typeset import Float

HERE = Path(__file__).parent
SOURCES = ("preamble.tex", "main.tex", "artifact.tex", "supplement.tex", "references.bib")
KINDS = {"brief": brief, "figures": figures, "tables": tables}
"""What the paper shows, and what the supplement does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds and says in one line each what came of it; 1 where results, claims, folders or LaTeX are at fault.

    130 where it was interrupted.
    """
    parser = argparse.ArgumentParser(prog="python -m paper", description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE / "results", help="stored records (default: %(default)s)")
    parser.add_argument(
        "--also", type=Path, action="append", default=[], help="outputs of a run on this machine, shown apart"
    )
    parser.add_argument("--out", type=Path, default=HERE / "build", help="where to build (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    try:
        measurements = gather(chosen.results, chosen.also)
        floats = build(measurements, chosen.out)
        print(f"{sum(len(made) for made in floats.values())} figures and tables are in {chosen.out}.")
        missing = claims.left_out((chosen.out / "claims.tex").read_text(encoding="utf-8"))
        if missing:
            print(f"Left out, because these records do not bear them out: {', '.join(missing)}.", file=sys.stderr)
        if latex.available():
            newest = numbers.newest(measurements)
            paper, supplement = latex.compile_pdfs(chosen.out, int(newest.timestamp()) if newest else 0)
            print(f"The paper is {paper}, its supplement {supplement}.")
        else:
            print(f"There is no PDF, because latexmk is not installed; on Debian: {latex.INSTALL}.")
    except (ResultsError, claims.ClaimError, latex.LatexError) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        wanted = "--results must be a folder that can be read, --out one that can be written"
        print(f"{error.filename} cannot be used ({error.strerror}): {wanted}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; the same command builds all of it anew.", file=sys.stderr)
        return 130
    return 0


def build(measurements: Measurements, folder: Path) -> dict[str, list[Float]]:
    """Writes everything that the LaTeX sources input, and the sources; returns the floats by file name."""
    floats = {}
    for kind, package in KINDS.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for found in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"paper.{kind}.{found.name}")
            made = module.make(measurements) if kind == "tables" else module.make(measurements, folder)
            floats[f"{kind}/{found.name}"] = made
            text = "\n\n".join(each.body for each in made)
            (folder / kind / f"{found.name}.tex").write_text(text + "\n", encoding="utf-8")
    (folder / "numbers.tex").write_text(numbers.make(measurements, floats), encoding="utf-8")
    own = measurements.rows[[machine.origin == "paper" for machine in measurements.rows["machine"]]]
    (folder / "claims.tex").write_text(claims.tex(own), encoding="utf-8")
    for name in SOURCES:
        shutil.copyfile(HERE / name, folder / name)
    return floats


if __name__ == "__main__":
    sys.exit(main())
