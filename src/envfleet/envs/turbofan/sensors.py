"""Sensors of a turbofan engine: names, units, and response to wear and flight conditions."""

from __future__ import annotations

from typing import Final

import numpy as np

NAMES: Final = (
    "HPC_Tout",
    "HP_Nmech",
    "HPC_Tin",
    "LPT_Tin",
    "Fuel_flow",
    "HPC_Pout_st",
    "LP_Nmech",
    "phase_type",
    "DTAMB",
)
"""Sensors in the order of an observation's columns."""

UNITS: Final = ("K", "rpm", "K", "K", "kg/s", "Pa", "rpm", "", "K")
"""Units of the sensors; the flight phase is dimensionless."""

NUM_SENSORS: Final = len(NAMES)

MODEL: Final = np.array(
    [
        [797.22, 2.73, -12.1, 0.0, 0.10, 1.21, 0.18, 0.15],
        [19390.0, 36.1, -205.0, -185.0, 2.8, 25.3, -22.5, 4.0],
        [335.80, 1.28, -0.05, 0.22, -0.22, 0.063, 0.027, 0.03],
        [1120.3, 4.10, -0.9, 3.4, -0.91, -0.07, -0.095, 0.12],
        [0.37212, 8.8e-4, -2.4e-4, 6.0e-4, -1.8e-4, 1e-5, -1e-5, 2e-5],
        [1.3691e6, -386.0, -4.85e4, 0.0, 2820.0, 4742.0, 1749.0, 400.0],
        [3957.95, 7.46, -0.1, 0.3, -1.21, 0.48, 0.23, 0.2],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [10.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    ]
)
"""One row per sensor: value of a new engine, change per kelvin of ambient deviation from 10 K, per unit of wear, per
unit of squared wear, per unit of the three conditions of the flight, and standard deviation of its noise.

Signs are those of an engine held at one thrust: a worn compressor lowers core speed and delivery pressure, the
low-pressure turbine runs hotter, fuel flow rises a little. Values fit aggregates of 617 recorded episodes.
"""

HPC_TOUT: Final = 0
HPC_POUT_ST: Final = 5
DTAMB: Final = 8
