"""Forecast the next day's demand from past days: a quantile for each part of the day, seasonal by weekday.

    x[d, s]   demand of past day d in entry s, above 0
    growth    weekly growth: the median over days of log (day / same weekday a week before)
    z[d, s] = log x[d, s] + growth x weeks from d to the next day
    centre  = mean of z over days of the same weekday, with a shape shrunk towards that of all days
    r[d, s] = z[d, s] - centre of d's weekday in s, widened because the centre was fitted to these days
    forecast of quantile q = exp(centre of the next day's weekday + quantile q of r in s and its neighbours)

An entry far below others of the same time is an outage and left out, because one dead day would pull the mean of
logarithms far down. If no day of a weekday has demand at that time, it is no outage: nobody works then.

Each entry has its own quantile. Busier whole days are covered too, because residuals include the days' levels. The
forecast knows no holidays and no weather: a special day needs a profile of its own.

docs/design/schedule.md compares it with exponential smoothing from a well-kept library.
"""

from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING

from planner.facts.calendar import weekday_of
from planner.facts.day import DAY_MINUTES
from planner.facts.history import MAX_DEMAND, History

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

WEEK = 7
POOLED_DAYS = 1.0  # assumed: the shape of all days counts as much as one day of the weekday itself
NEIGHBOURS_MINUTES = 60  # assumed: residuals of an hour on each side are alike
OUTAGE = 0.01  # share of the median at that time; assumed: no ordinary night or holiday is so quiet
SMALLEST = 1e-9  # share of the largest demand that stands for 0, which has no logarithm
DIGITS = 6


@dataclass(frozen=True)
class Forecast:
    """The next day's demand in each entry (time step of the day), in the unit of the past days."""

    date: str
    num_days: int  # past days that the forecast was made from
    num_outages: int  # entries of past days that were left out as outages
    median: tuple[float, ...]
    quantile: tuple[float, ...]  # at the given quantile
    past: History

    @property
    def times_the_median(self) -> float:
        """The day's total demand at the quantile / its total at the median; 1 without demand."""
        return fsum(self.quantile) / fsum(self.median) if any(self.median) else 1.0


def forecast(history: History, quantile: float) -> Forecast:
    """Forecast the demand of the day after the last of `history`, at the median and at `quantile`."""
    import numpy as np  # `validate` must not wait for it

    days = np.array([[np.nan if each is None else each for each in day.demand] for day in history.days])
    largest = np.nanmax(days)
    if not largest > 0:
        nothing = (0.0,) * days.shape[1]
        return Forecast(history.next_date, len(days), 0, nothing, nothing, history)
    weekdays = np.array([weekday_of(day.date) for day in history.days])
    ages = np.array([day.days_before_next for day in history.days])
    are_outages = _outages(days, weekdays)
    days[are_outages] = np.nan
    has_some = ~np.isnan(days).all(axis=1)
    days, weekdays, ages = days[has_some], weekdays[has_some], ages[has_some]
    logs = np.log(np.maximum(days, largest * SMALLEST))
    levelled = logs + _growth(logs, ages)[:, None]
    centres = {
        int(day): _fit_centre(levelled, weekdays == day) for day in {*weekdays.tolist(), weekday_of(history.next_date)}
    }
    residuals = np.concatenate(
        [_widen_residuals(levelled[weekdays == day] - centre, POOLED_DAYS) for day, centre in centres.items()]
    )
    middle = centres[weekday_of(history.next_date)]
    low, high = _quantiles(residuals, (0.5, quantile))
    return Forecast(
        date=history.next_date,
        num_days=len(has_some),
        num_outages=int(are_outages.sum()),
        median=_demand(middle + low),
        quantile=_demand(middle + high),
        past=history,
    )


def _outages(days: "Floats", weekdays: "NDArray[np.int_]") -> "NDArray[np.bool_]":
    """Return which entries are outages, `[days, entries]`: demand near 0 when the weekday's other days have some."""
    import numpy as np  # as above

    are_low: NDArray[np.bool_] = days < OUTAGE * np.nanmedian(days, axis=0)
    for weekday in set(weekdays.tolist()):
        own = weekdays == weekday
        never = (are_low | np.isnan(days))[own].all(axis=0) if own.sum() > 1 else np.zeros(days.shape[1], bool)
        are_low[np.ix_(own, never)] = False
    return are_low


def _growth(logs: "Floats", ages: "Floats") -> "Floats":
    """Return the growth of log demand from each past day to the day of the forecast, `[days]`.

    `logs` is log demand, `[days, entries]`, and `ages` the number of days from each past day to the forecast's.
    """
    import numpy as np  # as above

    level = {int(age): float(np.nanmean(row)) for age, row in zip(ages, logs, strict=True)}
    a_week = [level[age] - level[age + WEEK] for age in level if age + WEEK in level]
    growth: Floats = (np.median(a_week) if a_week else 0.0) * ages / WEEK
    return growth


def _fit_centre(levelled: "Floats", of_weekday: "NDArray[np.bool_]") -> "Floats":
    """Return a weekday's mean log demand, `[entries]`, with its shape over the day shrunk towards that of all days.

    `levelled` is log demand with each day's growth added, `[days, entries]`; `of_weekday` marks the weekday's days.
    """
    import numpy as np  # as above

    pooled: Floats = np.nanmean(levelled, axis=0)
    own = levelled[of_weekday]
    if not len(own):
        return pooled
    pooled = pooled + np.nanmean(own - pooled)
    counts = (~np.isnan(own)).sum(axis=0)
    centre: Floats = (np.nansum(own, axis=0) + POOLED_DAYS * pooled) / (counts + POOLED_DAYS)
    return centre


def _widen_residuals(residuals: "Floats", pooled: float) -> "Floats":
    """Return residuals scaled up to those of a new day.

    Residuals of past days are smaller than those of a new day, because the centre was fitted to the past days.
    """
    days = len(residuals)
    share = 1 / (days + pooled)  # weight of each day in its own centre
    widened: Floats = residuals * ((1 + share) / (1 - share)) ** 0.5 if days > 1 else residuals
    return widened


def _quantiles(residuals: "Floats", quantiles: tuple[float, float]) -> "Floats":
    """Return the quantiles of the residuals of each entry and its neighbours, `[quantiles, entries]`.

    The loop over entries saves memory: all entries at once would need a copy of the residuals for each neighbour.
    """
    import numpy as np  # as above

    size = residuals.shape[1]
    reach = max(1, NEIGHBOURS_MINUTES * size // DAY_MINUTES)
    around = np.arange(-reach, reach + 1)
    found = [np.nanquantile(residuals[:, (entry + around) % size], quantiles) for entry in range(size)]
    return np.array(found).T


def _demand(logs: "Floats") -> tuple[float, ...]:
    import numpy as np  # as above

    # limited, because growth over centuries would overflow
    return tuple(float(f"{each:.{DIGITS}g}") for each in np.exp(np.minimum(logs, np.log(MAX_DEMAND))))
