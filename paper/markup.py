"""The LaTeX of generated floats as HTML: the words that `typeset` and the captions use, nothing more.

A macro that is not known here shows its arguments, so that no word is lost.
"""

import re
from collections.abc import Callable
from html import escape

SIGNS = {
    "textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "textmu": "µ", "times": "×", "dagger": "†",
    "cdot": "·", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "pm": "±", "approx": "≈", "mu": "µ", "infty": "∞",
    "ldots": "…", "dots": "…", "to": "→", "rightarrow": "→",
}  # fmt: skip
TAGS = {"emph": "em", "textit": "em", "texttt": "code", "code": "code", "textbf": "strong"}
RULES = re.compile(r"\\(?:toprule|midrule|bottomrule|addlinespace|cmidrule(?:\([^)]*\))?\{[^}]*\})")
TOKEN = re.compile(r"\\[a-zA-Z]+\*?|\\.|[{}$^_~]|``|''|---?|[^\\{}$^_~`'-]+|.", re.DOTALL)
Refer = Callable[[str], str]


def plain(label: str) -> str:
    """A reference in a text that stands alone."""
    return f"({label})"


def inline(text: str, refer: Refer = plain) -> str:
    """A caption, sentence or cell; `refer` says what a label shows as, in HTML."""
    tokens = TOKEN.findall(text)
    tokens.reverse()
    return "".join(_read(tokens, refer, None))


def _read(tokens: list[str], refer: Refer, end: str | None, math: bool = False) -> list[str]:
    """What stands before the token `end`, which is taken as well."""
    found = []
    while tokens:
        token = tokens.pop()
        if token == end:
            break
        found.append(_one(token, tokens, refer, math))
    return found


def _one(token: str, tokens: list[str], refer: Refer, math: bool) -> str:
    if token == "{":
        return "".join(_read(tokens, refer, "}", math))
    if token == "$":
        return "".join(_read(tokens, refer, "$", True))
    if math and token in "^_":
        tag = "sup" if token == "^" else "sub"
        return f"<{tag}>{_one(tokens.pop(), tokens, refer, True) if tokens else ''}</{tag}>"
    if token == "~" or token == "\\,":
        return "&nbsp;"
    if token in ("``", "''"):
        return "“" if token == "``" else "”"
    if token in ("--", "---") and not math:
        return "–" if token == "--" else "—"
    if not re.match(r"\\[a-zA-Z]", token):
        shown = escape(token.removeprefix("\\") if len(token) == 2 and token[0] == "\\" else token, quote=False)
        return re.sub(r"[A-Za-z]+", r"<i>\g<0></i>", shown.replace("-", "−")) if math else shown
    return _macro(token[1:].rstrip("*"), tokens, refer, math)


def _macro(name: str, tokens: list[str], refer: Refer, math: bool) -> str:
    if name in SIGNS:
        if tokens and tokens[-1].startswith(" "):
            tokens[-1] = tokens[-1][1:]  # LaTeX swallows the blanks behind a word
        if tokens[-2:] == ["}", "{"]:
            del tokens[-2:]
        return SIGNS[name]
    if name in ("ref", "label"):
        label = _raw(tokens)
        return refer(label) if name == "ref" else ""
    shown = ""
    while tokens and tokens[-1] == "{":
        tokens.pop()
        shown += "".join(_read(tokens, refer, "}", math and name != "text"))
    return f"<{TAGS[name]}>{shown}</{TAGS[name]}>" if name in TAGS else shown


def _raw(tokens: list[str]) -> str:
    """An argument as it is typed."""
    found = ""
    if tokens and tokens[-1] == "{":
        tokens.pop()
        while tokens and (token := tokens.pop()) != "}":
            found += token
    return found


def argument(body: str, macro: str) -> str:
    """The first argument of the first use of a macro, with the braces in it; empty where it is not used."""
    start = body.find(f"\\{macro}{{")
    if start < 0:
        return ""
    start = depth_from = start + len(macro) + 2
    depth = 1
    for match in re.finditer(r"\\.|[{}]", body[depth_from:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if not depth:
            return body[start : depth_from + match.start()]
    return body[start:]


def tables(body: str, refer: Refer = plain) -> str:
    """Every tabular of a float as an HTML table: what stands above the middle rule is its head."""
    return "".join(
        _table(content, refer) for content in re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", body, re.DOTALL)
    )


def _table(content: str, refer: Refer) -> str:
    argument_end = _closing(content)
    head, _, rest = content[argument_end:].partition(r"\midrule")
    parts = [(head, "th"), (rest, "td")] if rest else [(head, "td")]
    shown = []
    for lines, tag in parts:
        rows = [RULES.sub("", line).strip() for line in re.split(r"\\\\(?!\w)", lines)]
        cells = "".join(f"<tr>{_cells(row, tag, refer)}</tr>\n" for row in rows if row)
        shown.append(f"<{'thead' if tag == 'th' else 'tbody'}>\n{cells}</{'thead' if tag == 'th' else 'tbody'}>")
    return f"<table>\n{''.join(shown)}\n</table>"


def _closing(content: str) -> int:
    """Behind the column specification."""
    depth = 0
    for place, character in enumerate(content):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "}" and not depth:
            return place + 1
    return 0


def _cells(row: str, tag: str, refer: Refer) -> str:
    found = []
    for cell in re.split(r"(?<!\\)&", row):
        many = re.match(r"\s*\\multicolumn\{(\d+)\}", cell)
        if many:
            spec_at = many.end()
            text_at = spec_at + _closing(cell[spec_at:])
            kind = "left" if "l" in cell[spec_at:text_at] else "centre"
            found.append(f'<{tag} colspan="{many[1]}" class="{kind}">{inline(cell[text_at:].strip(), refer)}</{tag}>')
        else:
            found.append(f"<{tag}>{inline(cell.strip(), refer)}</{tag}>")
    return "".join(found)
