"""LaTeX for generated floats: escaping, numbers, tables with rules above and below, figures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: "\\" + character for character in "&%$#_{}"},
}
MISSING = "--"


@dataclass(frozen=True)
class Float:
    """A figure or table environment and the label it can be referred to by."""

    label: str
    body: str


def escape(text: str) -> str:
    """Text as LaTeX prints it literally."""
    return "".join(_SPECIAL.get(character, character) for character in text)


def decimals(value: float | None, digits: int = 2) -> str:
    """A number with a fixed number of decimals; a dash for none."""
    return MISSING if value is None or math.isnan(value) else f"{value:.{digits}f}"


def significant(value: float | None, digits: int = 3) -> str:
    """A number with at least so many significant digits, never in powers of ten; a dash for none."""
    if value is None or math.isnan(value):
        return MISSING
    whole = math.floor(math.log10(abs(value))) + 1 if value else 1
    return f"{value:.{max(digits - whole, 0)}f}"


def scientific(value: float | None) -> str:
    """A number as 6.55e-08; a dash for none."""
    return MISSING if value is None or math.isnan(value) else f"{value:.2e}"


def brief(value: float) -> str:
    """A large number as 5.1e5, for a narrow column."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def power(value: float) -> str:
    """A number as a mantissa and a power of ten, for a sentence."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return rf"${mantissa}\times10^{{{int(exponent)}}}$"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def span(labels: Sequence[str]) -> str:
    """References to floats that follow one another: the first and the last."""
    if len(labels) == 1:
        return rf"\ref{{{labels[0]}}}"
    return rf"\ref{{{labels[0]}}}" + (" and~" if len(labels) == 2 else "--") + rf"\ref{{{labels[-1]}}}"


def figure(label: str, pdf: str, caption: str, wide: bool = True) -> Float:
    """A figure as wide as the text, or as a column of it."""
    kind = "figure*" if wide else "figure"
    lines = [
        rf"\begin{{{kind}}}\centering",
        rf"\includegraphics{{{pdf}}}",
        rf"\caption{{{caption}}}\label{{{label}}}",
        rf"\end{{{kind}}}",
    ]
    return Float(label, "\n".join(lines))


def table(
    label: str,
    columns: str,
    head: Sequence[str],
    body: Sequence[str | Sequence[str]],
    caption: str,
    wide: bool = True,
    gap: str = "2.5pt",
) -> Float:
    """A table as wide as the text, or as a column; a body line that is a string stands as it is, others are cells.

    `gap` is half the space between columns.
    """
    kind = "table*" if wide else "table"
    lines = [
        rf"\begin{{{kind}}}\centering\footnotesize\setlength{{\tabcolsep}}{{{gap}}}",
        rf"\caption{{{caption}}}\label{{{label}}}",
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        *head,
        r"\midrule",
        *(line if isinstance(line, str) else " & ".join(line) + r" \\" for line in body),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\end{{{kind}}}",
    ]
    return Float(label, "\n".join(lines))


def heading(text: str, columns: int, first: bool) -> str:
    """A line across a table that names the rows below it."""
    return ("" if first else r"\addlinespace ") + rf"\multicolumn{{{columns}}}{{@{{}}l}}{{\emph{{{text}}}}} \\"
