"""Learning rates, against the paper's formula."""

import pytest

from distilvec.config.training import ScheduleSection, TrainSection
from distilvec.train.optimizer import build_schedule


def section(**changes):
    schedule = ScheduleSection(name="cycles", cycles=3)
    return TrainSection(**{"epochs": 30, "final_learning_rate": 1e-5, "schedule": schedule, **changes})


def test_redact_cycles_change_at_epoch_ends_only():
    schedule = build_schedule(section(), total_steps=3000, learning_rate=1e-4, passes=30)
    for cycle in range(3):
        for e in range(10):
            rates = {schedule(step, cycle * 10 + e) for step in range(100)}
            assert len(rates) == 1 and rates.pop() == pytest.approx(1e-4 - 9e-5 * e / 9)


def test_constant_linear_and_cosine_with_warm_up():
    for name, middle in (("constant", 1e-4), ("linear", 5.5e-5), ("cosine", 5.5e-5)):
        warm = section(schedule=ScheduleSection(name=name, warmup=0.1))
        schedule = build_schedule(warm, total_steps=111, learning_rate=1e-4, passes=30)
        assert schedule(0, 0) == pytest.approx(1e-4 / 11) and schedule(10, 0) == pytest.approx(1e-4)
        assert schedule(11, 0) == pytest.approx(1e-4)
        assert schedule(60, 0) == pytest.approx(middle, rel=0.02)
        assert schedule(110, 0) == pytest.approx(1e-4 if name == "constant" else 1e-5)


def test_warm_up_in_steps():
    warm = section(schedule=ScheduleSection(name="linear", warmup=4))
    schedule = build_schedule(warm, total_steps=20, learning_rate=1e-4, passes=30)
    assert [schedule(step, 0) for step in range(4)] == pytest.approx([2.5e-5, 5e-5, 7.5e-5, 1e-4])


def test_a_cycle_of_one_epoch_stays_high():
    schedule = build_schedule(section(epochs=3), total_steps=30, learning_rate=1e-4, passes=3)
    assert {schedule(0, epoch) for epoch in range(3)} == {1e-4}


def test_the_last_epoch_of_a_cycle_trains_without_a_final_rate():
    """A tenth of the highest rate; other schedules end at 0."""
    schedule = build_schedule(section(final_learning_rate=None), total_steps=3000, learning_rate=1e-4, passes=30)
    assert schedule(0, 9) == pytest.approx(1e-5) and schedule(0, 10) == pytest.approx(1e-4)
    cosine = section(final_learning_rate=None, schedule=ScheduleSection(name="cosine", warmup=0.1))
    assert build_schedule(cosine, total_steps=100, learning_rate=1e-4, passes=30)(99, 0) == pytest.approx(0)


def rates_of(epochs, passes=None):
    """The rate of each epoch, with three cycles from 1e-4 to 1e-5."""
    schedule = build_schedule(section(epochs=epochs), 1000, 1e-4, passes or epochs)
    return [schedule(0, epoch) for epoch in range(passes or epochs)]


@pytest.mark.parametrize("epochs", [4, 5, 7, 10, 20, 29, 31])
def test_every_cycle_of_a_number_that_cannot_be_divided_ends_at_the_lowest_rate(epochs):
    rates = rates_of(epochs)
    starts = [epoch for epoch in range(epochs) if rates[epoch] == pytest.approx(1e-4)]
    assert len(starts) == 3 and rates[-1] == pytest.approx(1e-5)
    for start, end in zip(starts, [*starts[1:], epochs], strict=True):
        falling = rates[start:end]
        assert falling == sorted(falling, reverse=True)
        assert len(falling) == 1 or falling[-1] == pytest.approx(1e-5)


def test_cycles_are_laid_out_over_the_passes_that_max_steps_leaves():
    rates = rates_of(30, passes=6)
    assert rates == pytest.approx([1e-4, 1e-5] * 3)


def test_steps_behind_the_last_planned_epoch_keep_its_rate():
    schedule = build_schedule(section(epochs=9), 1000, 1e-4, 9)
    assert schedule(999, 9) == schedule(990, 8) == pytest.approx(1e-5)
