"""Few rows: every shape, real and complex, ours beside its peers."""

from paper import shapes
from paper.captions import conditions
from paper.cells import unmarked
from paper.measurements import Measurements
from paper.typeset import Float, escape, table


def make(measurements: Measurements) -> list[Float]:
    """A table of each GPU or CPU that few rows were measured on."""
    floats = []
    for machine, rows in shapes.measured(measurements, "few_rows"):
        rows = rows.assign(rows=rows["B"] * rows["C"])
        names = shapes.peers(rows)
        columns, head = shapes.head(["rows", "$T$"], names)
        body = shapes.body(rows, ["rows", "T"], names, len(columns))
        caption = (
            f"Few rows on {escape(machine.title)}, time contiguous, in ms{conditions(rows)}. \\emph{{limit}}: fraction "
            r"of the roofline that ours reaches, with its 95\,\% interval. A complex number counts eight bytes."
            f"{unmarked(rows)}"
        )
        floats.append(table(f"tab:few-rows:{machine.slug}", columns, head, body, caption))
    return floats
