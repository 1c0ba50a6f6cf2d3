"""Flags made from fields: none is missing, each has its type, its help and its environment variable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from octavo.cli.options import (
    SAMPLING_FIELDS,
    byte_size,
    engine_options,
    field_docs,
    given,
    sampling_options,
    take_sampling_params,
)
from octavo.config import PARTS, CacheConfig, EngineConfig, option_names
from octavo.params import ParameterError, SamplingParams


def parse(*arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """What a command with all options is called with."""
    seen: dict[str, Any] = {}

    @click.command()
    @sampling_options
    @engine_options
    def command(**options: Any) -> None:
        seen.update(options)

    result = CliRunner().invoke(command, list(arguments), env=env)
    assert result.exit_code == 0, result.output
    return seen


def test_every_setting_is_a_flag_with_help() -> None:
    @click.command()
    @engine_options
    def command() -> None: ...

    options = {parameter.name: parameter for parameter in command.params}
    assert list(options) == option_names()
    for name, option in options.items():
        assert isinstance(option, click.Option)
        assert option.help
        assert option.opts == [f"--{name.replace('_', '-')}"]
        assert option.envvar == f"OCTAVO_{name.upper()}"


def test_nothing_given_leaves_the_defaults_to_the_settings() -> None:
    options = parse()
    assert take_sampling_params(options) == SamplingParams(max_tokens=512, temperature=0.7)
    assert given(options) == {}


def test_flags_become_settings_of_their_type() -> None:
    options = parse(
        *(
            "--max-num-seqs",
            "8",
            "--kv-cache-memory",
            "1GiB",
            "--kv-cache-dtype",
            "float32",
            "--block-size",
            "32",
        ),
        *("--no-enable-prefix-caching", "--debug-checks", "--admission", "reserve", "--watermark", "0.5"),
    )
    take_sampling_params(options)
    config = EngineConfig.from_options("m", **given(options))
    assert config.scheduler.max_num_seqs == 8
    assert config.scheduler.admission == "reserve"
    assert config.scheduler.watermark == 0.5
    assert config.cache == CacheConfig(
        block_size=32, kv_cache_memory=2**30, kv_cache_dtype="float32", enable_prefix_caching=False
    )
    assert config.runtime.debug_checks


def test_flags_win_over_the_environment() -> None:
    env = {"OCTAVO_MAX_NUM_SEQS": "3", "OCTAVO_SEED": "9", "OCTAVO_ENABLE_PREFIX_CACHING": "false"}
    options = parse("--seed", "4", env=env)
    assert options["max_num_seqs"] == 3
    assert options["seed"] == 4
    assert options["enable_prefix_caching"] is False


def test_sampling_flags() -> None:
    options = parse("--temperature", "0", "--top-k", "5", "--stop", "a", "--stop", "b", "--max-tokens", "9")
    expected = SamplingParams(temperature=0.0, top_k=5, stop=("a", "b"), max_tokens=9)
    assert take_sampling_params(options) == expected
    assert not set(SAMPLING_FIELDS) & options.keys()


def test_a_sampling_value_out_of_range_names_its_field() -> None:
    with pytest.raises(ParameterError, match="top_p"):
        take_sampling_params(parse("--top-p", "7"))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("7", 7),
        ("7B", 7),
        ("2KiB", 2048),
        ("2kb", 2000),
        ("512MiB", 2**29),
        ("1.5 GiB", 3 * 2**29),
        ("1TB", 10**12),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert byte_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "5x", "-1GiB", "1G1", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size such as 512MiB"):
        byte_size(text)


def test_docs_are_the_strings_under_fields() -> None:
    assert field_docs(CacheConfig)["num_blocks"] == "Blocks in the pool. Excludes kv_cache_memory."
    assert "\n" not in "".join(text for part in PARTS.values() for text in field_docs(part).values())


def test_the_documentation_has_every_setting() -> None:
    text = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
    for part in PARTS.values():
        for name, doc in field_docs(part).items():
            assert f"| `--{name.replace('_', '-')}`" in text
            assert f"| {doc} |" in text
