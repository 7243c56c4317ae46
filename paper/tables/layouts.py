"""Layouts: channels last in every shape, ours beside its peers and beside transposing around our own kernel."""

from paper import shapes
from paper.captions import conditions
from paper.cells import unmarked
from paper.measurements import Measurements
from paper.typeset import Float, escape, table


def make(measurements: Measurements) -> list[Float]:
    """A table of each GPU or CPU that channels last were measured on."""
    floats = []
    for machine, rows in shapes.measured(measurements, "layouts"):
        names = shapes.peers(rows)
        columns, head = shapes.head(["$T$", "$C$", "$B$"], names)
        body = shapes.body(rows, ["T", "C", "B"], names, len(columns))
        caption = (
            f"Channels last on {escape(machine.title)}, in ms{conditions(rows)}. \\emph{{limit}}: fraction of the "
            r"roofline that ours reaches, with its 95\,\% interval. \emph{transposed}: copies of gates and tokens with "
            "time contiguous, our kernel for those, and a copy of the states back; backward it starts from the "
            f"transposed gates and states, which automatic differentiation keeps.{unmarked(rows)}"
        )
        floats.append(table(f"tab:layouts:{machine.slug}", columns, head, body, caption))
    return floats
