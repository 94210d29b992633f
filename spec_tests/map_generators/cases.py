"""Models of transformers on the meta device: each class of a family, with each setting that gives other keys.

A case is a class and one changed setting. The settings are found by trying: booleans are flipped,
what is missing gets a number, counts that say where something begins get 0, 1 and 2, and lists of
words get each word everywhere. A setting counts if it changes the names in memory.
"""

import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from spec_tests.map_generators.tiny_models import NUMBERS, SETTINGS, shrink

Setting = tuple[str, Any] | None
"""The changed entry of a configuration, with dots, and its value."""
_COUNTS = re.compile("dense|period|offset|freq|step|shared|every|interval|nextn|mtp|share")
_EXPERTS = [name for name, number in NUMBERS.items() if number in (11, 12)]
_SECONDS = 60
"""For one model, however large."""


@dataclass(frozen=True)
class Case:
    """A model to fit a map to."""

    family: str
    of_model: str
    """The name of the class."""
    setting: Setting = None
    is_tiny: bool = True
    """False for the default sizes, but for the number of experts."""

    def __str__(self) -> str:
        size = "" if self.is_tiny else " of default size"
        return f"{self.of_model}{size}" + (f" with {self.setting}" if self.setting else "")


@cache
def classes() -> dict[str, list[str]]:
    """Return the classes of each family: of all tables of transformers."""
    from transformers.models.auto import modeling_auto as auto

    found: dict[str, list[str]] = {}
    for name in sorted(vars(auto), key=lambda name: ("CAUSAL" not in name, name)):
        if name.startswith("MODEL") and name.endswith("_MAPPING_NAMES"):
            for family, given in getattr(auto, name).items():
                for each in [given] if isinstance(given, str) else given:
                    if each not in found.setdefault(family, []):
                        found[family].append(each)
    return found


@contextmanager
def _limited() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError("it takes too long to build")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def config_of(case: Case) -> Any:
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[case.family]()
    if case.is_tiny:
        shrink(config)
    else:
        _fewer_experts(config)
    for name, value in SETTINGS.get(case.family, {}).items():
        setattr(config, name, value)
    if case.setting is not None:
        *tables, name = case.setting[0].split(".")
        owner = config
        for each in tables:
            owner = getattr(owner, each)
        setattr(owner, name, case.setting[1])
    return config


def _fewer_experts(config: Any) -> None:
    from transformers import PreTrainedConfig

    for name, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            _fewer_experts(value)
        elif name in _EXPERTS and type(value) is int and value > NUMBERS[name]:
            setattr(config, name, NUMBERS[name])


def build(case: Case, device: str = "meta") -> Any:
    import torch
    import transformers
    from transformers.initialization import no_init_weights

    of_model = getattr(transformers, case.of_model)
    with _limited(), torch.device(device), no_init_weights():
        return of_model(config_of(case)).eval()


def _tries(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings to try."""
    from transformers import PreTrainedConfig

    others = vars(PreTrainedConfig())
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig) and not prefix:
            yield from _tries(value, f"{name}.")
        if name.startswith("_") or (name in others and name != "tie_word_embeddings"):
            continue
        values: list[Any] = []
        if isinstance(value, bool):
            values = [not value]
        elif value is None:
            values = [8, True]
        elif isinstance(value, int) and _COUNTS.search(name):
            values = [0, 1, 2]
        elif isinstance(value, list) and value and all(isinstance(x, str) for x in value):
            values = [[word] * len(value) for word in dict.fromkeys(value)]
        for each in values:
            if each != value or type(each) is not type(value):
                yield prefix + name, each


def names_of(state: Mapping[str, Any]) -> frozenset[tuple[str, int]]:
    """Return the names of a model without their numbers, with the numbers of axes."""
    return frozenset((re.sub(r"\d+", "#", key), value.ndim) for key, value in state.items())


def settings_of(family: str, of_model: str) -> tuple[list[Setting], int]:
    """Return the settings that change names, and how many were tried."""
    first = Case(family, of_model)
    known, found, count = {names_of(build(first).state_dict())}, list[Setting](), 0
    for setting in _tries(config_of(first)):
        count += 1
        try:
            names = names_of(build(Case(family, of_model, setting)).state_dict())
        except Exception:  # noqa: BLE001 - models raise anything.
            continue
        if names not in known:
            known.add(names)
            found.append(setting)
    return found, count
