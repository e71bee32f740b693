"""What does an hour of a device cost, rented or owned, and when does owning pay?

Pure arithmetic for floats and columns. Left out: interest, taxes, storage, network traffic, and what is
charged for the building beyond its electricity.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.campaign.duration import SECONDS_PER_HOUR, Quantity

HOURS_PER_YEAR = 365.25 * 24


def depreciation_per_hour(purchase: Quantity, lifetime: float, utilisation: float) -> Quantity:
    """Purchase price spread over the hours in use [$/h].

    purchase / (lifetime x utilisation), straight-line to nothing; lifetime [s], utilisation 0..1. Definition.
    """
    return purchase / (lifetime / SECONDS_PER_HOUR * utilisation)


def running_cost_per_hour(
    purchase: Quantity,
    power: float,
    pue: float,
    electricity_price: float,
    staff_per_year: float,
    maintenance_fraction: float,
    utilisation: float,
) -> Quantity:
    """Electricity, people and upkeep of one's own device, for an hour in use [$/h].

    3600 power PUE price + (staff + maintenance x purchase) / (8766 utilisation). power [W],
    electricity_price [$/J], staff [$/year], maintenance [1/year]. An idle device is taken to draw nothing.
    """
    yearly = (staff_per_year + maintenance_fraction * purchase) / (HOURS_PER_YEAR * utilisation)
    return yearly + SECONDS_PER_HOUR * power * pue * electricity_price


def break_even_hours(purchase: Quantity, rent: Quantity, running: Quantity) -> Quantity:
    """Hours of use after which owning a device has cost less than renting it [h].

    purchase / (rent - running), prices [$/h]; infinite where renting costs no more than running. Definition.
    """
    saved = np.maximum(rent - running, 0.0)
    hours: Any = np.where(saved > 0, purchase / np.where(saved > 0, saved, 1.0), np.inf)
    return hours[()]
