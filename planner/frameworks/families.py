"""What does a family of models compute that no dimension of a model says, and which libraries have it?

Facts ship as `families.json`, from modeling files of transformers 5.23 and 5.24. A test asks for a decision on the
traits of every family. Left out: what a configuration states itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from pydantic import BaseModel, ConfigDict


class Families(BaseModel):
    """Families by fact.

    `traits`: what no argument states from dimensions, in words: a launcher that is told only these would train another
    model. `sigmoid`: whose routers score experts with a sigmoid and correct their balance by a bias (arXiv 2412.19437).
    `normalized`: whose weights of chosen experts always add up to 1. `rotated`: share of a head that the library
    rotates where a configuration does not say. `unrotated`: hybrids whose attention knows no positions, or that have
    none. `not_in_library`: of which transformers 5.24 has no causal language model (models/auto/modeling_auto.py):
    published with code of their own, or there only beside a vision tower. `since_5_24`: of which releases before have
    none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    traits: Mapping[str, str]
    sigmoid: frozenset[str]
    normalized: frozenset[str]
    rotated: Mapping[str, float]
    unrotated: frozenset[str]
    not_in_library: frozenset[str]
    since_5_24: frozenset[str]


FAMILIES: Final = Families.model_validate_json((files("planner.frameworks") / "families.json").read_bytes())
TRAITS: Final = FAMILIES.traits
