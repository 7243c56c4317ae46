"""LaTeX of generated floats as HTML: every word survives, and what is marked stays marked."""

import pytest

from paper.markup import argument, inline, tables
from paper.typeset import escape, power, table


@pytest.mark.parametrize(
    ("latex", "html"),
    [
        (r"a\_b, 95\,\% \& \#1", "a_b, 95&nbsp;% &amp; #1"),
        (r"\emph{ours, cl}: \texttt{x\_y}", "<em>ours, cl</em>: <code>x_y</code>"),
        (r"$B=8$, $\times$, $^\dagger$", "<i>B</i>=8, ×, <sup>†</sup>"),
        (r"$1\text{--}2$", "1–2"),
        (r"``it's'' 2--3~\textmu s", "“it's” 2–3&nbsp;µs"),
        (escape("<\\ ~ ^ {x} $ a_b"), "&lt;\\ ~ ^ {x} $ a_b"),
        (power(3.59e-3), "3.59×10<sup>−3</sup>"),
        (r"\unheardof{two}{words} stay", "twowords stay"),
        (r"Table~\ref{tab:a_b}", "Table&nbsp;(tab:a_b)"),
    ],
)
def test_text(latex: str, html: str) -> None:
    assert inline(latex) == html


def test_references_are_shown_as_asked() -> None:
    assert inline(r"see \ref{fig:x}", lambda label: f"[{label}]") == "see [fig:x]"


def test_an_argument_keeps_its_braces() -> None:
    assert argument(r"\caption{a \emph{b} \} c}\label{d}", "caption") == r"a \emph{b} \} c"
    assert argument("none", "caption") == ""


def test_a_table() -> None:
    made = table(
        "tab:x", "rrr", [r" & \multicolumn{2}{c}{both} \\", r"\cmidrule(lr){2-3}", r"$T$ & ours & warp \\"],
        [r"\addlinespace \multicolumn{3}{@{}l}{\emph{float32}} \\", ["128", "0.5", r"0.7$^\dagger$"]], "Times.",
    )  # fmt: skip
    assert tables(made.body).replace("\n", "") == (
        '<table><thead><tr><th></th><th colspan="2" class="centre">both</th></tr>'
        "<tr><th><i>T</i></th><th>ours</th><th>warp</th></tr></thead>"
        '<tbody><tr><td colspan="3" class="left"><em>float32</em></td></tr>'
        "<tr><td>128</td><td>0.5</td><td>0.7<sup>†</sup></td></tr></tbody></table>"
    )
