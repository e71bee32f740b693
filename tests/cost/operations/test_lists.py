"""Has every kind of block in the specification a list of operations, and do the lists add up?"""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

from planner.cost.operations.lists import attention_of, layer_operations, model_operations
from planner.cost.operations.operation import Run
from planner.cost.params import KINDS
from planner.spec.attention import AttentionKind
from planner.spec.config import CUDA_GRAPH_MODULES, RECOMPUTE_MODULES
from planner.spec.load_model import catalog_models, load_model
from planner.spec.mixers import MIXERS, StateSpace
from planner.spec.residual import RESIDUALS, Residual
from planner.spec.stack.layer_code import Library, Modelling, Part
from planner.spec.stack.time import Kernels
from tests.cost.memory.test_activations import shape
from tests.problems import attention

MODELS = [load_model(name) for name in catalog_models()]


def kinds_of(base: type[StateSpace]) -> set[type[StateSpace]]:
    """A mixer's dataclass and those made from it."""
    return {base}.union(*(kinds_of(kind) for kind in base.__subclasses__()))


def test_every_mixer_of_the_specification_has_a_module() -> None:
    assert set(MIXERS) == kinds_of(StateSpace)
    for mixer in MIXERS:
        module = import_module(f"planner.cost.operations.{mixer.kind}")
        assert {"operations", "seconds", "flops"} <= set(vars(module))


def test_every_way_to_add_to_the_stream_has_a_module() -> None:
    assert set(RESIDUALS) == set(Residual.__subclasses__())
    for residual in RESIDUALS:
        module = import_module(f"planner.cost.operations.{residual.block}")
        assert {"operations", "outer", "kept_behind"} <= set(vars(module))


@pytest.mark.parametrize("kind", AttentionKind)
def test_every_kind_of_attention_has_a_module(kind: AttentionKind) -> None:
    found = {a.kind: attention_of(a) for model in MODELS for a in model.attentions}
    found.setdefault(AttentionKind.MHA, attention_of(attention(8, 8)))
    assert "operations" in vars(found[kind])


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_operations_name_what_the_rest_of_the_cost_knows(model: object) -> None:
    for layer in model.layer_kinds:  # type: ignore[attr-defined]
        ops = model_operations(layer, model.hidden)  # type: ignore[attr-defined]
        assert {op.kind for op in ops} <= {"", *KINDS}
        assert {name for op in ops for name in op.modules} <= set(RECOMPUTE_MODULES)
        assert {op.graph for op in ops} <= {"", *CUDA_GRAPH_MODULES}


@pytest.mark.parametrize("single", [False, True])
def test_amounts_of_a_column_are_those_of_its_rows(single: bool) -> None:
    kernels = Kernels(code=Modelling(fused=(Part.ACTIVATION,)) if single else Library())
    cuts = [shape(t=2), shape(t=4, sp=True, e=2)]
    column = type(cuts[0])(
        **{name: np.concatenate([np.atleast_1d(vars(cut)[name]) for cut in cuts]) for name in vars(cuts[0])}
    )
    for layer in {layer for model in MODELS for layer in model.layer_kinds}:
        for block in layer.blocks:
            for op in layer_operations(block, Run(4096, kernels)):
                amounts = (op.moved, op.moved_back, op.ahead, op.alive, op.alive_late, *op.kept.values())
                for amount in (one for one in amounts if one is not None):
                    rows = [np.broadcast_to(amount(cut), 1) for cut in cuts]
                    assert np.broadcast_to(amount(column), 2) == pytest.approx(np.concatenate(rows))
