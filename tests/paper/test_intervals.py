"""Intervals of ratios: Student's points as printed in tables, the right coverage, pairs that cancel a drift."""

import math
import random

import pytest

from paper.intervals import independent, paired, student


@pytest.mark.parametrize(
    ("freedom", "printed"), [(1, 12.706), (2, 4.303), (4, 2.776), (6, 2.447), (12, 2.179), (30, 2.042), (1000, 1.962)]
)
def test_students_points_are_those_of_the_tables(freedom: int, printed: float) -> None:
    assert student(freedom) == pytest.approx(printed, abs=6e-4)


def test_five_pairs_by_hand() -> None:
    ratios = [0.96, 0.97, 0.98, 0.99, 1.0]
    point, low, high = paired(ratios, [1.0] * 5)
    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(logs) / 5
    reach = 2.776445 * math.sqrt(sum((log - mean) ** 2 for log in logs) / 4 / 5)
    assert (point, low, high) == pytest.approx((0.98, math.exp(mean - reach), math.exp(mean + reach)))


def test_pairs_cancel_what_drifts_and_independent_samples_do_not() -> None:
    drift = [1.0, 1.2, 1.4, 1.6, 1.8]
    _, low, high = paired([2 * each for each in drift], drift)
    assert low == pytest.approx(2) and high == pytest.approx(2)
    point, low, high = independent([2 * each for each in drift], drift)
    assert low < 1.6 < point < 2.5 < high and point == pytest.approx(2)


@pytest.mark.parametrize("samples", [5, 7])
@pytest.mark.parametrize("interval", [paired, independent])
def test_nineteen_in_twenty_intervals_hold_the_true_ratio(samples: int, interval) -> None:
    noise = random.Random(0)
    hits = 0
    for _ in range(2000):
        first, second = ([math.exp(noise.gauss(0, 0.02)) for _ in range(samples)] for _ in range(2))
        _, low, high = interval([0.9 * each for each in first], second)
        hits += low <= 0.9 <= high
    assert 0.935 <= hits / 2000 <= 0.97


def test_the_point_lies_in_its_interval_even_beside_an_outlier() -> None:
    point, low, high = paired([1.0, 1.0, 1.0, 1.0, 9.0], [1.0] * 5)
    assert low <= point == 1.0 <= high and high > 2


def test_what_was_not_measured_in_pairs_is_not_known() -> None:
    assert all(map(math.isnan, paired([], [])))
    assert all(map(math.isnan, paired([1.0, 2.0], [1.0])))
    assert all(map(math.isnan, independent([], [1.0])))
    point, low, high = paired([1.0], [2.0])
    assert point == 0.5 and math.isnan(low) and math.isnan(high)
    point, low, high = independent([1.0], [2.0])
    assert point == 0.5 and math.isnan(low) and math.isnan(high)
