"""Every provider by its name."""

from __future__ import annotations

from experiments.providers.accelerated_scan import Complex, Ref, Scalar, Warp
from experiments.providers.around_ours import Transposed, TwoLaunches
from experiments.providers.base import Provider
from experiments.providers.fla import Hgrn
from experiments.providers.jax_scan import JaxAssociativeScan
from experiments.providers.optional import AssociativeScanTriton, Linrec
from experiments.providers.ours import Ours
from experiments.providers.reference import Blelloch, HillisSteele, Sequential
from experiments.providers.torch_scan import TorchAssociativeScan
from experiments.providers.warp_flips import WarpFlips
from experiments.roofline import Roofline

PROVIDERS: dict[str, Provider] = {
    provider.name: provider
    for provider in (
        Ours(),
        Warp(),
        Scalar(),
        Ref(),
        Hgrn(),
        TorchAssociativeScan(),
        JaxAssociativeScan(),
        Sequential(),
        HillisSteele(),
        Blelloch(),
        AssociativeScanTriton(),
        Linrec(),
        Transposed(),
        Complex(),
        TwoLaunches(),
        WarpFlips(),
        Roofline(),
    )
}
