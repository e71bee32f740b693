"""How uneven is the routing of a mixture of experts that a question asks about?

What it states counts. Where it states nothing, a router that corrects its balance by a bias is taken balanced, as are
experts padded to one capacity; others as training with an auxiliary loss leaves them (`cost/routing.py`). Left out: how
the busiest rank is costed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.ask.question import Question
from planner.cost.routing import placed_by_index, trained_balance, zipf_loads
from planner.dialect import option
from planner.errors import InputError
from planner.frameworks import framework_of_stack
from planner.space.axes import divisors
from planner.spec.findings import Finding, finding
from planner.spec.hf.families import facts_of
from planner.spec.load_loads import ROUNDING, load_expert_loads, zipf_exponent
from planner.spec.model import ModelSpec
from planner.spec.stack import Stack

Factors = tuple[tuple[int, float], ...]

BALANCE_EFFORT: Final = 0.1  # of placing replicas of experts, at each degree
MOST_REPLICAS: Final = 8  # of an expert on average
LOADS_ASSUMED: Final = frozenset({  # codes of what is assumed of it
    "loads_unused", "loads_balanced_by_bias", "loads_unstated", "expert_loads", "experts_replicated",
})  # fmt: skip
TOLD: Final = (8, 64)  # degrees of which an assumption is told, where they divide the experts


def imbalance_of(
    request: Question, model: ModelSpec, stack: Stack, assumed: list[Finding]
) -> tuple[Factors, int]:
    """Tokens of the busiest expert-parallel rank over the mean, by degree (none: balanced), and replicas of experts in
    all (0: each once). Raises `InputError`."""
    if request.expert_loads is None:
        if request.expert_replicas is not None:
            hint = f"add {option('expert_loads', 'zipf:0.6')}"
            raise InputError("replicas of experts need their loads", hint=hint)
        return usual_imbalance(model, stack, assumed), 0
    exponent = zipf_exponent(request.expert_loads)
    mixtures = {layer.moe for layer in model.blocks if layer.moe}
    if exponent == 0 and request.expert_replicas is None:
        if not mixtures:
            assumed.append(finding("loads_unused", loads=request.expert_loads))
        return (), 0
    if not mixtures:
        must = f"{option('expert_loads')} needs a model with experts"
        raise InputError(must, f"{model.name}, which has none", "leave it out")
    counts = {moe.experts for moe in mixtures}
    if len(counts) != 1:
        raise InputError("expert loads need a model whose layers have equally many experts", model.name)
    experts, choices = counts.pop(), max(moe.mean_k for moe in mixtures)
    stated = load_expert_loads(request.expert_loads, experts, choices) if exponent is None else None
    loads = np.array(stated) if exponent is None else zipf_loads(experts, exponent, choices)
    full = exponent is not None and loads[0] * choices > 1 - ROUNDING
    return _placed(request, loads, choices if full else None, assumed)


def usual_imbalance(model: ModelSpec, stack: Stack, assumed: list[Finding]) -> Factors:
    """The same where no loads are stated, said among what is assumed."""
    counts = sorted({layer.moe.experts for layer in model.blocks if layer.moe})
    if not counts or stack.kernels.expert_padding:
        return ()
    runner = framework_of_stack(stack.framework)
    if facts_of(model.family).balances or (runner is not None and runner.balances):
        assumed.append(finding("loads_balanced_by_bias"))
        return ()
    degrees = sorted({ep for experts in counts for ep in divisors(experts)[1:]})
    factors = tuple((ep, max(trained_balance(n, ep) for n in counts if n % ep == 0)) for ep in degrees)
    told = [one for one in factors if one[0] in TOLD] or [factors[-1]]
    assumed.append(
        finding("loads_unstated", degrees=[ep for ep, _ in told], imbalances=[factor for _, factor in told])
    )
    return factors


def _placed(
    request: Question, loads: NDArray[np.float64], full: float | None, assumed: list[Finding]
) -> tuple[Factors, int]:
    """Of stated loads: with replicas placed as evenly as can be, without by index. `full`: experts of a token, where
    some have as many of a distribution as these allow."""
    from planner.solve.balance import balance_experts

    experts = len(loads)
    replicas = experts if request.expert_replicas is None else request.expert_replicas
    if not experts <= replicas <= MOST_REPLICAS * experts:
        most = MOST_REPLICAS * experts
        must = f"{option('expert_replicas')} must be from {experts}, one of every expert, to {most:,}"
        raise InputError(must, str(replicas), "leave it out for one of every expert, placed by index")
    degrees = divisors(experts)[1:]
    moved = request.expert_replicas is not None
    effort = BALANCE_EFFORT if moved else 0.0
    evenly = [balance_experts(loads, -(-replicas // ep) * ep, ep, effort).imbalance for ep in degrees]
    factors = evenly if moved else [placed_by_index(loads, ep) for ep in degrees]
    facts = {
        "loads": request.expert_loads, "experts": experts, "degrees": degrees, "imbalances": factors, "choices": full,
    }  # fmt: skip
    assumed.append(
        finding("experts_replicated", replicas=replicas, **facts)
        if moved
        else finding("expert_loads", placed=evenly, **facts)
    )
    return tuple(zip(degrees, factors, strict=True)), 0 if replicas == experts else replicas
