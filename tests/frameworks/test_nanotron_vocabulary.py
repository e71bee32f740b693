"""nanotron pads the vocabulary so that tensor parallelism divides it (helpers.py _vocab_size_with_padding)."""

from __future__ import annotations

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.edges import padded_vocabulary
from planner.frameworks import framework
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.spec.config import ParallelConfig
from planner.spec.stack.engines import Nanotron
from tests.problems import dense_model, problem


def test_an_odd_vocabulary_is_padded_to_tensor_parallel_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = problem(dense_model(vocab=50277), stack=load_stack("nanotron-2024"))
    assert [float(v) for v in padded_vocabulary(subject, np.array([1.0, 2.0, 4.0]))] == [50277, 50278, 50280]
    devices = subject.cluster.num_devices
    count = subject.job.global_batch // (devices // 2)
    config = ParallelConfig(tp=2, dp=devices // 2, sp=1, num_microbatches=count)
    broken = [violation.rule for violation in explain_config(config, subject, rules_for(subject.stack))]
    assert "vocabulary-tp" not in broken
    monkeypatch.setattr(Nanotron, "pads_vocabulary", 0)
    assert "vocabulary-tp" in [v.rule for v in explain_config(config, subject, rules_for(subject.stack))]


def test_of_a_key_given_twice_the_last_counts() -> None:
    """As PyYAML reads it (nanotron config/config.py get_config_from_file)."""
    text = (
        "parallelism: {dp: 4, pp: 1, tp: 2, pp_engine: 1f1b}\ntokens: {micro_batch_size: 2, sequence_length: 1024}\n"
        "model:\n  model_config:\n    hidden_size: 512\n    hidden_size: 1024\n"
    )
    found = framework("nanotron").parse({"a.yaml": text})
    assert found.model is not None
    assert found.model.hidden == 1024
    assert found.notes == ("hidden_size is given twice: nanotron takes the last",)
