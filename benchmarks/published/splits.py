"""How did software that has no stack of its own deal a row's layers to pipeline ranks?

Left out: what stacks do (`space/split.py`).
"""

from __future__ import annotations

from typing import Final

_FEWEST_STAGES: Final = 4
_FEWEST_LAYERS: Final = 8


def libai_split(layers: int, stages: int) -> tuple[int, ...] | None:
    """Layers of LiBai's pipeline ranks where they are not dealt evenly; None elsewhere.

    From 4 ranks on it deals as if up to pp - 1 layers more followed, which its last ranks then lack: 24 on 4 are 6, 7,
    7, 4. Source: Oneflow-Inc/libai@9dcbe3b libai/utils/distributed.py (pipeline_num_layers, auto_pipeline_stage_id).
    """
    if stages < _FEWEST_STAGES or layers < _FEWEST_LAYERS or layers % stages:
        return None
    each = layers // stages
    dealt = layers + min(stages - 1, each)
    each, more = divmod(dealt, stages)
    held, left = list[int](), layers
    for stage in range(stages):
        held.append(min(each + (stage >= stages - more), left))
        left -= held[-1]
    return tuple(held)
