"""What does a `config.json` say in one field? Typed access that names file and field when it is wrong.

Left out: what a field means, which the family readers know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from planner.errors import FileInputError, UnsupportedError, as_written, nearest_names
from planner.spec.dimensions import LARGEST, MOST_LAYERS
from planner.spec.findings import Finding, finding
from planner.spec.layer import Activation

_ACTIVATIONS = {
    "gelu": Activation.GELU,
    "gelu_python": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "quick_gelu": Activation.QUICK_GELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "swiglu": Activation.SILU,
    "relu": Activation.RELU,
    "relu2": Activation.RELU2,
    "xielu": Activation.XIELU,
    "situ": Activation.SITU,
}


# what neither decides time nor memory, and yet is written to launch files: figures wherever they stand
_FIGURES: Final = frozenset(
    (
        "rope_theta", "rms_norm_eps", "layer_norm_epsilon", "norm_epsilon", "layer_norm_eps", "norm_eps",
        "partial_rotary_factor", "rotary_pct", "routed_scaling_factor", "router_scaling_factor", "route_scale",
        "factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor",
        "attention_factor", "original_max_position_embeddings",
    )
)  # fmt: skip
_ROTATIONS: Final = ("rope_scaling", "rope_parameters")


@dataclass
class ConfigFields:
    """The fields of one configuration object, and a record of what had to be assumed."""

    values: dict[str, Any]
    file: str
    prefix: str = ""
    assumed: list[Finding] = field(default_factory=list)

    def check_figures(self) -> None:
        """Raise `FileInputError` for a figure of a launch file that is none."""
        inner = [
            (f"{name}.", value) for name in _ROTATIONS if isinstance(value := self.values.get(name), dict)
        ]
        for path, values in [("", self.values), *inner]:
            for name, value in values.items():
                if isinstance(value, dict) and path:  # of each kind of layer
                    inner.append((f"{path}{name}.", value))
                for one in value if isinstance(value, list) else [value]:
                    number = isinstance(one, int | float) and not isinstance(one, bool) and abs(one) < 1e300
                    if name in _FIGURES and not (number or one is None or isinstance(one, dict)):
                        raise self.error(
                            f"{path}{name}", "must be a finite number", one, "write it as a number"
                        )

    def error(self, name: str, must: str, given: object, hint: str) -> FileInputError:
        return FileInputError(self.file, must, as_written(given), hint, field=self.prefix + name)

    def assume(self, name: str, value: object, why: str = "default of the transformers library") -> None:
        said = finding("config_field", field=f"{self.prefix}{name}", value=str(value), why=why)
        if said not in self.assumed:  # experts and dense layers read the same fields
            self.assumed.append(said)

    def with_defaults(self, **defaults: int) -> ConfigFields:
        """These fields, with integers of the library where the file leaves them out or says null."""
        missing = {name: value for name, value in defaults.items() if self.values.get(name) is None}
        for name, value in missing.items():
            self.assume(name, value)
        return replace(self, values={**self.values, **missing})

    def renamed(self, names: Mapping[str, str]) -> ConfigFields:
        """These fields, with values under the library's names that the file holds under other ones: library's -> other.

        Raises `FileInputError` where both are given and differ.
        """
        for new, old in names.items():
            both = self.given(new) and self.given(old)
            if both and self.values[new] != self.values[old]:
                given = f"{self.values[old]} and {self.values[new]}"
                raise self.error(
                    old, f"must be what {new} is, another name of it", given, "leave one of the two out"
                )
        stated = {new: self.values[old] for new, old in names.items() if self.given(old)}
        return replace(self, values={**self.values, **stated})

    def given(self, *names: str) -> str | None:
        """The first of several spellings that the file holds with a value."""
        return next((name for name in names if self.values.get(name) is not None), None)

    def integer(self, *names: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """An integer under any of these spellings; required unless there is a `default`."""
        name = self.given(*names)
        if name is None:
            return self._missing(names, default)
        value = self.values[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(
                name, "must be an integer", value, "write it without quotes, decimals or true/false"
            )
        if not least <= value <= most:
            bounds = f"must be an integer from {least} to {most}"
            raise self.error(name, bounds, value, "correct the value")
        return value

    def layer_count(self, *names: str) -> int:
        """How many layers; required, and bounded because one object per layer is built."""
        return self.integer(*names, most=MOST_LAYERS)

    def _missing(self, names: tuple[str, ...], default: int | None) -> int:
        if default is None:
            present = [name for name in names if name in self.values]
            near = nearest_names(names[0], self.values, 3) if self.values and not present else []
            hint = f"{'give' if present else 'add'} {names[0]!r} {'a value in' if present else 'to'} the file"
            hint += f"; the file has {', '.join(near)}" if near else ""
            raise self.error(names[0], "must be given", None, hint)
        self.assume(names[0], default)
        return default

    def optional_integer(self, *names: str, least: int = 1) -> int | None:
        """An integer, or None where the file leaves it out or says null."""
        return self.integer(*names, least=least) if self.given(*names) else None

    def boolean(self, name: str, default: bool) -> bool:
        """A boolean; the library's default is recorded when it is left out."""
        value = self.values.get(name)
        if value is None:
            self.assume(name, default)
            return default
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false", value, "write true or false without quotes")
        return value

    def integers(self, name: str) -> list[int] | None:
        """A list of integers, 0 or more, or None."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or any(
            not isinstance(i, int) or isinstance(i, bool) or i < 0 for i in value
        ):
            raise self.error(name, "must be a list of integers, 0 or more", value, "correct the list")
        return value

    def words(self, name: str, allowed: tuple[str, ...]) -> list[str] | None:
        """A list of words out of `allowed`, or None."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.error(name, "must be a list", value, f"list one of {', '.join(allowed)} per layer")
        for word in value:
            if word not in allowed:
                raise self.error(
                    name, f"must hold only {', '.join(allowed)}", word, "this layer type is not modelled"
                )
        return value

    def one_per_layer(self, name: str, entries: list[str] | list[int], layers: int) -> None:
        """Refuse a list, of types or numbers, that has not one entry for every layer."""
        if len(entries) == layers:
            return
        if all(isinstance(entry, str) for entry in entries):
            raise self.error(name, "must name one type per layer", len(entries), f"list {layers} types")
        raise self.error(name, "must have one entry per layer", len(entries), f"list {layers} entries")

    def refused(self, what: str, given: str, hint: str) -> UnsupportedError:
        """The error of an architecture that the cost model does not know."""
        return UnsupportedError(f"{self.file}: {what}", given, hint)

    def section(self, name: str) -> ConfigFields:
        """A nested object; empty where the file leaves it out."""
        value = self.values.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.error(name, "must be an object", value, "write it as {...}")
        return ConfigFields(value, self.file, f"{self.prefix}{name}.", self.assumed)

    def activation(self, *names: str, default: Activation) -> Activation:
        """The activation function under any of these spellings."""
        name = self.given(*names)
        if name is None:
            self.assume(names[0], default)
            return default
        value = self.values[name]
        if not isinstance(value, str) or value not in _ACTIVATIONS:
            known = ", ".join(sorted(_ACTIVATIONS))
            raise self.error(name, "must be a known activation", value, f"known: {known}")
        return _ACTIVATIONS[value]

    def divides(self, divisor_name: str, divisor: int, name: str, value: int) -> None:
        """Refuse dimensions that do not divide each other."""
        if value % divisor:
            raise self.error(
                name,
                f"must be a multiple of {divisor_name}",
                f"{name}={value}, {divisor_name}={divisor}",
                "correct one of the two",
            )
