"""Is PYTORCH_ALLOC_CONF read as PyTorch reads it, and is what it refuses refused by name?"""

from __future__ import annotations

import pytest

from planner.dryrun.allocator.settings import MIB, AllocatorSettings, read_alloc_conf
from planner.errors import InputError, UnknownNameError


@pytest.mark.parametrize("text", ["", "  ", "backend:native", "pinned_num_register_threads:8,"])
def test_nothing_that_changes_the_device_leaves_the_defaults(text: str) -> None:
    assert read_alloc_conf(text) == AllocatorSettings()


def test_options_as_people_write_them() -> None:
    settings = read_alloc_conf(
        "expandable_segments:True, max_split_size_mb:128,garbage_collection_threshold:0.8,"
        "per_process_memory_fraction:0.5"
    )
    assert settings == AllocatorSettings(
        expandable_segments=True,
        max_split_size=128 * MIB,
        garbage_collection_threshold=0.8,
        memory_fraction=0.5,
    )


@pytest.mark.parametrize(
    "text",
    [
        "PYTORCH_CUDA_ALLOC_CONF={}", "PYTORCH_ALLOC_CONF={}", "PYTORCH_HIP_ALLOC_CONF={}",
        "export PYTORCH_CUDA_ALLOC_CONF={}", "PYTORCH_CUDA_ALLOC_CONF='{}'", 'export PYTORCH_ALLOC_CONF="{}"',
        "'{}'", '"PYTORCH_ALLOC_CONF={}"', " PYTORCH_ALLOC_CONF = {} ",
    ],
)  # fmt: skip
def test_the_variable_as_a_shell_sets_it(text: str) -> None:
    conf = "expandable_segments:True,roundup_power2_divisions:[256:1,>:8]"
    assert read_alloc_conf(text.format(conf)) == read_alloc_conf(conf) != AllocatorSettings()


def test_the_last_of_two_values_holds() -> None:
    assert not read_alloc_conf("expandable_segments:True,expandable_segments:False").expandable_segments


def test_rounding_without_splits_follows_the_large_segment() -> None:
    settings = read_alloc_conf(
        "max_split_size_mb:64,large_segment_size_mb:40"
    )  # read first, wherever it stands
    assert (settings.large_segment, settings.max_non_split_rounding) == (40 * MIB, 40 * MIB)
    assert read_alloc_conf("max_non_split_rounding_mb:30").max_non_split_rounding == 30 * MIB


def test_one_number_of_divisions_holds_for_all_sizes() -> None:
    assert read_alloc_conf("roundup_power2_divisions:4").roundup_divisions == (4,) * 16


def test_a_list_of_divisions() -> None:
    """The first size holds below itself, ">" above the last: 256 MiB is interval 8."""
    read = read_alloc_conf("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").roundup_divisions
    assert read == (1,) * 9 + (2, 4) + (8,) * 5


def test_sizes_that_a_list_leaves_out_have_no_divisions() -> None:
    read = read_alloc_conf("roundup_power2_divisions:[4:2,16:8],expandable_segments:True").roundup_divisions
    assert read == (2, 2, 2, 0, 8) + (0,) * 11


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_split_size_mb:19", "max_split_size_mb must be at least 20"),
        ("max_split_size_mb:30,large_segment_size_mb:40", "max_split_size_mb must be at least 40"),
        ("large_segment_size_mb:10", "large_segment_size_mb must be at least 11"),
        ("max_split_size_mb:128MB", "must be a whole number"),
        ("garbage_collection_threshold:1", "must lie between 0 and 1"),
        ("garbage_collection_threshold:0", "must lie between 0 and 1"),
        ("garbage_collection_threshold:nan", "must be a number"),
        ("per_process_memory_fraction:1.5", "must be at most 1"),
        ("expandable_segments:true", "write expandable_segments:True"),
        ("pinned_use_background_threads:1", "must be True or False"),
        ("expandable_segments=True", "must be written name:value"),
        ("expandable_segments", "must be written name:value"),
        ("expandable_segments:True,,max_split_size_mb:64", "must be written name:value"),
        ("roundup_power2_divisions:3", "must be powers of two"),
        ("roundup_power2_divisions:0", "must be powers of two"),
        ("roundup_power2_divisions:[256:3]", "must be powers of two"),
        ("roundup_power2_divisions:[300:2]", "must be powers of two"),
        ("roundup_power2_divisions:[]", r"must be powers of two\n  given: \[\]"),
        (
            "roundup_power2_divisions:[64:8,128:4",
            r"end with \]\n  given: roundup_power2_divisions:\[64:8,128:4",
        ),
        ("roundup_power2_divisions:64:8]", r"begin with \["),
        ("ALLOC_CONF=expandable_segments:True", "unknown allocator option"),
        ("foo:1", "unknown allocator option 'foo'"),
        ("backend:cudaMallocAsync", "backend must be native"),
        ("backend:fast", "backend must be native"),
        ("throw_on_cudamalloc_oom:True", "throw_on_cudamalloc_oom must be False"),
    ],
)
def test_what_is_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told.replace("(", r"\(")):
        read_alloc_conf(text)


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(UnknownNameError, match="did you mean: max_split_size_mb") as told:
        read_alloc_conf("max_split_size:128")
    assert told.value.hint.count(",") == 2, "three names, not all"


def test_settings_that_the_tests_of_pytorch_refuse() -> None:
    """test_allocator_settings of PyTorch's test/test_cuda.py."""
    for text in ("foo:1,bar:2", "garbage_collection_threshold:1.2", "max_split_size_mb:2"):
        with pytest.raises(InputError):
            read_alloc_conf(text)
