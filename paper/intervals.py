"""Intervals of ratios of times: Student's t on the logarithms, because 5 samples allow nothing weaker.

Times are positive and what disturbs them multiplies them, so a ratio is judged by its logarithm. Samples of one case
are taken in turns, so sample i of one provider is paired with sample i of the other and what drifts cancels out. Order
statistics would assume less, but the extremes of 5 samples bracket a median with 94 % only, and a bootstrap of 5 to 7
samples is too narrow; the t-interval holds 95 % from 2 samples on and is widened by an outlier instead of hiding it.
The point is the median; the interval is stretched to it in the rare case that an outlier leaves it outside.
"""

import math
import statistics
from collections.abc import Sequence
from functools import cache

Interval = tuple[float, float, float]
"""The point and both ends of its 95 % interval; NaN for what is not known."""

UNKNOWN: Interval = (math.nan, math.nan, math.nan)
_TAIL = 0.975


def paired(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """The ratio of samples that were taken in turns, pair by pair."""
    if not numerator or len(numerator) != len(denominator):
        return UNKNOWN
    logs = [math.log(a / b) for a, b in zip(numerator, denominator, strict=True)]
    return _around(statistics.median(logs), *_mean_and_error(logs), len(logs) - 1)


def independent(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """The ratio of samples of different cases, which nothing pairs: Welch's interval (Welch 1947)."""
    if not numerator or not denominator:
        return UNKNOWN
    first, second = ([math.log(value) for value in samples] for samples in (numerator, denominator))
    (mean_a, error_a), (mean_b, error_b) = _mean_and_error(first), _mean_and_error(second)
    error = math.hypot(error_a, error_b)
    shares = sum(each**4 / (len(logs) - 1) for each, logs in ((error_a, first), (error_b, second)) if len(logs) > 1)
    freedom = math.floor(error**4 / shares) if shares > 0 else min(len(first), len(second)) - 1
    point = statistics.median(first) - statistics.median(second)
    return _around(point, mean_a - mean_b, error, freedom)


@cache
def student(freedom: int) -> float:
    """The 97.5 % point of Student's distribution, by bisection of its integral."""
    low, high = 0.0, 13.0  # one degree of freedom has 12.7
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 + _half_integral(middle, freedom) < _TAIL else (low, middle)
    return low


def _half_integral(end: float, freedom: int, steps: int = 400) -> float:
    """The probability of a value between 0 and `end`, by Simpson's rule."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    width = end / steps
    weights = (1 if i in (0, steps) else 4 if i % 2 else 2 for i in range(steps + 1))
    values = ((1 + (i * width) ** 2 / freedom) ** (-(freedom + 1) / 2) for i in range(steps + 1))
    return scale * width / 3 * sum(weight * value for weight, value in zip(weights, values, strict=True))


def _mean_and_error(logs: Sequence[float]) -> tuple[float, float]:
    if len(logs) < 2:
        return logs[0], math.nan
    return statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))


def _around(point: float, mean: float, error: float, freedom: int) -> Interval:
    if freedom < 1 or math.isnan(error):
        return math.exp(point), math.nan, math.nan
    reach = student(freedom) * error
    return math.exp(point), math.exp(min(point, mean - reach)), math.exp(max(point, mean + reach))
