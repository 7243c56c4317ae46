"""First-order linear recurrences `h[t] = g[t] * h[t-1] + x[t]`, fast and exact on GPU and CPU."""

from scan.api import (
    BidirectionalOutput,
    ScanOutput,
    linear_scan,
    linear_scan_bidirectional,
    scan_bidirectional_branched,
    scan_bidirectional_branched_compiled,
    scan_causal,
    scan_causal_compiled,
)
from scan.checks import check_offsets
from scan.packing import (
    cu_seqlens_to_lengths,
    get_grid,
    get_static_grid,
    lengths_to_cu_seqlens,
    next_power_of_2,
    shift_pad,
)

# Every name compiles without a graph break; the name of old callers stays.
shift_pad_compiled = shift_pad

__version__ = "0.1.0"

__all__ = [
    "BidirectionalOutput",
    "ScanOutput",
    "check_offsets",
    "cu_seqlens_to_lengths",
    "get_grid",
    "get_static_grid",
    "lengths_to_cu_seqlens",
    "linear_scan",
    "linear_scan_bidirectional",
    "next_power_of_2",
    "scan_bidirectional_branched",
    "scan_bidirectional_branched_compiled",
    "scan_causal",
    "scan_causal_compiled",
    "shift_pad",
    "shift_pad_compiled",
]
