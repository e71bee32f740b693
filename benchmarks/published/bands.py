"""How wide is the band of a published row? Its stack's own where its publisher's other runs were fitted on.

Left out: every other row, whose band is the one that `planner estimate` shows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from planner.calibrate.coverage import band_of, band_shown
from planner.spec.rule import Problem

# sources whose publishers' other runs the stacks were fitted on, by the first words of their names
_FITTED_ON: Final = re.compile(
    "aleph_alpha|bloom|deepseek|dgxc|gpt_neox|ibm_fms|jax_toolbox|korthikanti|llama[13]_paper|llm_foundry|megascale|"
    "megatron_(bridge|core|lm)|mlperf|mt_nlg|nemo_|opt_175b|simumax|torchtitan_|ultrascale|vtrain_"
)


def band_of_row(problem: Problem, time: Mapping[str, float], source: str) -> float:
    """The band of a row of a file; as wide as `planner estimate` shows it, if the stack saw no run of its source."""
    return band_of(problem) if _FITTED_ON.match(source) else band_shown(problem, time)
