"""Names, paths and files: what load_model finds, and how it refuses the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cost.params import model_parameters
from planner.errors import FileInputError, UnknownNameError, UnsupportedError
from planner.report.words import texts
from planner.spec.load_model import catalog_index, catalog_models, load_model, resolve_catalog_name

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "intermediate_size": 96,
}


def test_the_catalog_is_large_enough_and_every_entry_loads() -> None:
    assert len(catalog_models()) >= 40
    for name, entry in catalog_index().items():
        spec = load_model(name)
        assert spec.name == name
        assert spec.max_position >= 1024
        total = model_parameters(spec).total
        if entry.published_params is not None:
            assert total == entry.published_params, name


def test_each_catalog_folder_has_an_index_entry() -> None:
    folder = Path(__file__).parents[2] / "planner" / "catalog" / "models"
    assert {path.parent.name for path in folder.glob("*/config.json")} == set(catalog_models())


def test_a_name_as_the_catalog_writes_it_needs_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    def unread() -> None:
        raise AssertionError("the index was read")

    monkeypatch.setattr("planner.spec.load_model._names", unread)
    assert [resolve_catalog_name(name) for name in catalog_models()] == catalog_models()
    with pytest.raises(AssertionError, match="index was read"):
        resolve_catalog_name("index.yaml")


def test_aliases_lead_to_their_model_whatever_the_case() -> None:
    for name, entry in catalog_index().items():
        for alias in entry.aliases:
            assert load_model(alias).name == name
            assert load_model(alias.upper()).name == name


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("llama3.1_405b", "llama-3.1-405b"),
        ("DeepSeek_V3", "deepseek-v3"),
    ],
)
def test_common_spellings(spelling: str, name: str) -> None:
    assert load_model(spelling).name == name


def test_a_file_and_its_folder_give_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    by_folder, by_file = load_model(str(folder)), load_model(str(folder / "config.json"))
    assert by_folder == by_file
    assert by_folder.name == "mine"
    assert by_folder.num_layers == 2


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert load_model(str(path)).hidden == 64


def test_mtp_is_counted_only_when_asked() -> None:
    assert load_model("deepseek-v3").mtp_layers == 0
    assert load_model("deepseek-v3", with_mtp=True).mtp_layers == 1
    assert load_model("deepseek-v3").mtp_layers == 0
    assert not any("multi-token" in line for line in texts(load_model("deepseek-v3", with_mtp=True).assumed))
    said = texts(load_model("llama-3.1-8b", with_mtp=True).assumed)  # asked for in vain
    assert any(line.startswith("no multi-token prediction") for line in said)


def test_a_description_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text("layers: 2\nhidden: 64\nheads: 4\nffn: 96\nvocab: 100\ngated_mlp: true\n")
    described = load_model(str(path))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert model_parameters(described).total == model_parameters(load_model(str(tmp_path))).total
    assert described.name == "small"


@pytest.mark.parametrize("name", ["lama-3.1-70b", "", " ", "meta-llama/Llama-9", "x" * 5000, "\0", "?*"])
def test_an_unknown_name_lists_known_ones(name: str) -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean|none of \d+ known names is like it"):
        load_model(name)


def test_the_nearest_names_are_near() -> None:
    with pytest.raises(UnknownNameError, match=r"llama-3\.1-70b"):
        load_model("lama-3.1-70b")


@pytest.mark.parametrize("path", ["./nothing", "/nothing/config.json", "nothing.json", "~nobody/x"])
def test_a_missing_file_is_named(path: str) -> None:
    with pytest.raises(FileInputError, match="must exist"):
        load_model(path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "an empty file"),
        (b"{", "valid JSON"),
        (b"[1, 2]", "one object"),
        (b'"llama"', "one object"),
        (b"null", "one object"),
        (b"\xff\xfe{}", "UTF-8"),
        (b'{"model_type": "llama", "hidden_size": NaN}', "must be an integer"),
        (b'{"model_type": "llama", "hidden_size": -Infinity}', "must be an integer"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "valid JSON"),
        (b"[" * 100_000, "valid JSON"),
        (b'{"model_type": "llama", "hidden_size": 64, "hidden_size": 32}', "hidden_size: must be given once"),
        (b'{"rope_scaling": {"factor": 2, "factor": 4}}', "factor: must be given once"),
        (b"{}", "model_type"),
        (b'{"model_type": 3}', "model_type"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(FileInputError, match=complaint) as caught:
        load_model(str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", ["a: [", "- 1\n- 2", "a: &x [*x]", "\t"])
def test_broken_yaml_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(content)
    with pytest.raises(FileInputError):
        load_model(str(path))


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileInputError, match=r"config\.json"):
        load_model(str(tmp_path))


def test_weights_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(b" " * (9 * 2**20))
    with pytest.raises(FileInputError, match=r"smaller than 8\.39 MB"):
        load_model(str(path))


def test_an_unsupported_architecture_says_why(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "rwkv"}))
    with pytest.raises(UnsupportedError, match="recurrence"):
        load_model(str(path))


def test_published_totals_with_parts_that_planner_does_not_count() -> None:
    """GLM-4.5: an MTP module with an embedding and a head of its own, and one correction value per expert."""
    for name, published, routers in (("glm-4.5", 358337791296, 90), ("glm-4.5-air", 110468824832, 46)):
        spec = load_model(name, with_mtp=True)
        moe = spec.layers[-1].moe
        assert moe is not None
        own_tables = 2 * spec.vocab * spec.hidden
        assert model_parameters(spec).total + own_tables + routers * moe.experts == published
