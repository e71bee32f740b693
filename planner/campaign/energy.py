"""How much energy does a run take, and how much carbon dioxide is that?

Pure arithmetic for floats and columns. Left out: making the hardware (embodied carbon), storage, and the
switches beyond what the site's overhead holds.
"""

from __future__ import annotations

from planner.campaign.duration import SECONDS_PER_HOUR, Quantity


def average_power(maximum: Quantity, load: float) -> Quantity:
    """Average draw of a device with its share of the node [W]. maximum x load; load from 0 to 1. Definition."""
    return maximum * load


def run_energy(device_hours: Quantity, power: float, pue: float) -> Quantity:
    """Energy of a run, the site's overhead included [J].

    device-hours x 3600 x power x PUE; power [W] per device. Meta's model cards take the TDP of the device
    for power: 30.84M H100-hours x 700 W = 21.6 GWh for Llama 3.1 405B.
    """
    return device_hours * (SECONDS_PER_HOUR * power * pue)


def emissions(energy: Quantity, intensity: float) -> Quantity:
    """Carbon dioxide of a run, location-based [kg]. energy x intensity [kg/J]. Definition (GHG Protocol,
    scope 2). Certificates for renewable power do not change it."""
    return energy * intensity
