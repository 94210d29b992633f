"""Write the map that merges LoRA adapters in PEFT's layout into their base.

    base_model.model.MODULE.lora_A.weight       [r i]          a linear layer, or a convolution [r i h w]
    base_model.model.MODULE.lora_embedding_A    [r v]          an embedding
    base_model.model.MODULE.lora_B.bias         [o]            lora_bias
    base_model.model.MODULE.lora_magnitude_vector [o]          DoRA
    base_model.model.MODULE.base_layer.weight                  a copy of the base, which is compared
    base_model.model.KEY                                       modules_to_save: it replaces KEY

The scale of a module is in ``adapter_config.json``: ``lora_alpha / r``, or with ``use_rslora``
``lora_alpha / sqrt(r)``. Keys of ``alpha_pattern`` are regular expressions of the end of a module's
name, and the first one that matches counts. The rank is an extent of ``lora_A``.

Modules whose names differ only in numbers, and whose scales are equal, get one rule. A tensor of an
adapter that no rule takes is an error of the map.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from shardvar.errors import InconsistentTensor, MapError, UnsupportedError
from shardvar.maps.map import Map
from shardvar.maps.matching import read_beside
from shardvar.verbs.load import open_checkpoint
from shardvar.verbs.locate import Path
from shardvar.verbs.mapping import tensor_difference
from shardvar.verbs.reader import Reader

_CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
_NOT_MERGED = (
    "layer_replication",
    "trainable_token_indices",
    "use_qalora",
    "alora_invocation_tokens",
    "use_bdlora",
    "monteclora_config",
    "velora_config",
)
"""Entries of the configuration that change values in ways which these rules do not have."""
_PART = re.compile(
    r"(?P<module>.+?)\.(?P<part>(?:base_layer\.)?lora_[AB]\.weight|lora_B\.bias|lora_embedding_[AB]"
    r"|lora_magnitude_vector|base_layer\.(?:weight|bias))"
)
_NUMBER = re.compile(r"(?<![^.])(?:0|[1-9][0-9]{0,8})(?![^.])")
_LONGEST = 200
"""Characters of a regular expression."""
_MOST_REPEATS = 3
"""Repetitions in it: each multiplies the time of a comparison by the length of a name."""
_BY_HAND = "Write the rules by hand: --rule, in Python sv.Map([...])."


def lora_rules(base: Path, adapters: Path | Sequence[Path]) -> Map:
    """Return the map that merges LoRA adapters in PEFT's layout into their base.

    Parameters
    ----------
    base : path_like
        The checkpoint of the model, or any that has its names and shapes.
    adapters : path_like or sequence of path_like
        The folders of the adapters, each with ``adapter_config.json``. They are added.

    Returns
    -------
    Map
        Rules on the base and the adapters, in this order: ``sv.reshard([base, *adapters], out,
        map=...)``. Everything is computed in float64 and rounded once.

    Raises
    ------
    UnsupportedError
        If an adapter is of another kind, such as IA3, or its keys do not name the weights that they change.
    InconsistentTensor
        If an adapter's copy of a tensor of the base differs from the base.
    MapError
        If an adapter has no configuration that can be read.

    Examples
    --------
    >>> import json, tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> folder = tempfile.mkdtemp()
    >>> _ = sv.save(f"{folder}/base.safetensors", {"q.weight": np.ones((3, 2), np.float32)})
    >>> delta = {"lora_A.weight": np.ones((1, 2)), "lora_B.weight": np.ones((3, 1))}
    >>> delta = {f"base_model.model.q.{name}": array for name, array in delta.items()}
    >>> _ = sv.save(f"{folder}/adapter/adapter_model.safetensors", delta)
    >>> with open(f"{folder}/adapter/adapter_config.json", "w") as file:
    ...     json.dump({"peft_type": "LORA", "lora_alpha": 2, "r": 1}, file)
    >>> for rule in sv.lora_rules(f"{folder}/base.safetensors", f"{folder}/adapter").rules:
    ...     print(rule.replace("base_model.model.", ""))
    0/q.weight[o i] + 2 / r1 * 1/q.lora_B.weight[o r1] 1/q.lora_A.weight[r1 i] -> q.weight[o i]
    rest 0/{x:**} -> {x}
    """
    paths = (
        [adapters] if isinstance(adapters, str) or not isinstance(adapters, Sequence) else adapters
    )
    with ExitStack() as stack:
        model = stack.enter_context(open_checkpoint(base))
        deltas = [_Adapter(stack.enter_context(open_checkpoint(path))) for path in paths]
        terms: dict[tuple[str, str], list[str]] = {}
        lengths, replaced = dict[str, str](), list[str]()
        for number, delta in enumerate(deltas, 1):
            for module, part, side, term in delta.terms(number, model):
                terms.setdefault((module, part), [f"0/{side}"]).append(term)
            for module, key in delta.magnitudes(number):
                if module in lengths or len(terms[module, "weight"]) > 2:
                    cause = f"{module!r} has DoRA in one adapter, and another one changes it too."
                    raise UnsupportedError(
                        cause, "Merge one adapter; the other was trained on that."
                    )
                lengths[module] = key
            replaced += delta.replacements(number, model)
    rules = [rule for one in terms for rule in _rules(one, terms[one], lengths.get(one[0], ""))]
    return Map([*_by_kind(rules), *replaced, "rest 0/{x:**} -> {x}"])


class _Adapter:
    def __init__(self, reader: Reader) -> None:
        self.reader, self.keys = reader, {*reader}
        try:
            _, config = read_beside(reader.path, _CONFIG)
        except MapError as error:
            raise MapError(
                error.cause, f"Name the folder of an adapter, with its {_CONFIG}."
            ) from None
        self.config: Mapping[str, Any] = config if isinstance(config, dict) else {}
        kind = self.config.get("peft_type")
        if kind != "LORA":
            raise UnsupportedError(f"{reader.path} is an adapter of type {kind}.", _BY_HAND)
        for name in _NOT_MERGED:
            if self.config.get(name):
                cause = f"{reader.path} has {name} = {self.config[name]!r}, which no rule merges."
                raise UnsupportedError(cause, "Merge it with PEFT.")
        self.parts: dict[str, set[str]] = {}
        for key in reader:
            found = _PART.fullmatch(key.removeprefix(_PREFIX))
            if found:
                self.parts.setdefault(found["module"], set()).add(found["part"])

    def shape(self, module: str, part: str) -> tuple[int, ...]:
        return tuple(self.reader[f"{_PREFIX}{module}.{part}"].shape)

    def scale(self, module: str, number: int) -> str:
        patterns = self.config.get("alpha_pattern") or {}
        alpha = self.config.get("lora_alpha", 8)
        for pattern, value in patterns.items() if isinstance(patterns, dict) else ():
            if _ends_with(module, pattern):
                alpha = value
                break
        if isinstance(alpha, bool) or not isinstance(alpha, int | float):
            cause = f"{self.reader.path} has the scale {alpha!r} for {module!r}, not a number."
            raise MapError(cause, f"Correct {_CONFIG}.")
        rank = f"r{number}"
        return (
            f"{alpha!r} / sqrt({rank})" if self.config.get("use_rslora") else f"{alpha!r} / {rank}"
        )

    def terms(self, number: int, base: Reader) -> Iterator[tuple[str, str, str, str]]:
        """Yield modules, the changed part, the changed tensor with its axes, and the matrix that is added to it."""
        r = f"r{number}"
        for module, parts in self.parts.items():
            scale, own = self.scale(module, number), f"{number}/{_quoted(_PREFIX + module)}"
            is_in_out = bool(self.config.get("fan_in_fan_out"))
            weight = f"{module}.weight"
            for inner in ("", "base_layer."):
                if f"{inner}lora_A.weight" not in parts:
                    continue
                a, b = (f"{own}.{inner}lora_{x}.weight" for x in "AB")
                if not inner and weight in base:
                    if "float8" in base[weight].dtype:
                        cause = f"{weight!r} of the base is quantised: {base[weight].dtype}."
                        raise UnsupportedError(cause, "Dequantize the base: --dequantize.")
                    more = "".join(
                        f" {x}" for x in "hwd"[: len(self.shape(module, "lora_A.weight")) - 2]
                    )
                    ones = more and " 1" * (len(more) // 2)
                    axes = "[i o]" if is_in_out and not more else f"[o i{more}]"
                    term = f"{scale} * {b}[o {r}{ones}] {a}[{r} i{more}]"
                    yield module, "weight", f"{_quoted(weight)}{axes}", term
                else:
                    key, axes = self.expert(module, inner, base)
                    term = f"{scale} * {b}[o ({r} e)] {a}[(e {r}) i]"
                    yield key, "", f"{_quoted(key)}{axes}", term
            if "lora_embedding_A" in parts:
                term = f"{scale} * {own}.lora_embedding_B[h {r}] {own}.lora_embedding_A[{r} v]"
                yield module, "weight", f"{_quoted(weight)}[v h]", term
            if "lora_B.bias" in parts:
                # The scale has the rank, an extent of lora_A: a tensor of this rule gives it.
                size = self.shape(module, "lora_A.weight")[0]
                term = f"{scale.replace(r, str(size))} * {own}.lora_B.bias[o]"
                yield module, "bias", f"{_quoted(module)}.bias[o]", term

    def expert(self, module: str, inner: str, base: Reader) -> tuple[str, str]:
        """The only parameter of experts that fits two matrices, and its axes."""
        (rows, i), (o, _) = (self.shape(module, f"{inner}lora_{x}.weight") for x in "AB")
        names = self.config.get("target_parameters") or ()
        candidates = [f"{module}.{str(name).rpartition('.')[2]}" for name in names]
        shapes = {key: tuple(base[key].shape) for key in candidates if key in base}
        fits = {
            key: "[e o i]" if shape[1:] == (o, i) else "[e i o]"
            for key, shape in shapes.items()
            if len(shape) == 3 and sorted(shape[1:]) == sorted((o, i)) and rows % shape[0] == 0
        }
        if len(fits) == 1 and o != i:
            return next(iter(fits.items()))
        where = f"{_PREFIX}{module}.{inner}lora_A.weight"
        if not fits:
            cause = (
                f"{where!r} changes none of {', '.join(candidates) or 'no parameter'} of the base."
            )
            remedy = (
                "If the adapter has the names that transformers 5 holds in memory, first map the base "
                "with its *-hf-to-transformers map, and the result back."
            )
            raise UnsupportedError(cause, remedy)
        square = "is square" if o == i else f"is any of {', '.join(fits)}"
        raise UnsupportedError(
            f"What {where!r} changes {square}: its file does not say how.", _BY_HAND
        )

    def magnitudes(self, number: int) -> Iterator[tuple[str, str]]:
        """Yield the modules with DoRA, and the key of their lengths."""
        for module, parts in self.parts.items():
            if "lora_magnitude_vector" in parts:
                if "lora_A.weight" not in parts or len(self.shape(module, "lora_A.weight")) > 2:
                    cause = f"{module!r} has DoRA, and is not a linear layer."
                    raise UnsupportedError(cause, "Merge it with PEFT.")
                yield module, f"{number}/{_quoted(_PREFIX + module)}.lora_magnitude_vector[o]"

    def replacements(self, number: int, base: Reader) -> Iterator[str]:
        """Yield rules for tensors that come whole, and for copies of the base."""
        for key in self.reader:
            name = key.removeprefix(_PREFIX)
            found = _PART.fullmatch(name)
            if found and found["part"].startswith("base_layer.") and "lora" not in found["part"]:
                original = f"{found['module']}.{found['part'].removeprefix('base_layer.')}"
                place = tensor_difference(self.reader[key], base[original])
                if place is not None:
                    cause = f"{key!r} of {self.reader.path} is not the base's {original!r}: they differ {place}."
                    raise InconsistentTensor(cause, "Give the base that it was trained on.")
                yield f"{number}/{_quoted(key)} -> nothing"
            elif not found and name != key and name in base:
                yield f"{number}/{_quoted(key)} -> {_quoted(name)}"
                yield f"0/{_quoted(name)} -> nothing"


def _ends_with(module: str, pattern: str) -> bool:
    """Return True if a regular expression matches the end of a name, after nothing or a dot."""
    repeats = re.findall(r"[*+{?]", pattern)
    if len(pattern) > _LONGEST or len(repeats) > _MOST_REPEATS or re.search(r"\)[*+{]", pattern):
        raise UnsupportedError(f"{pattern!r} in {_CONFIG} may take long.", _BY_HAND)
    try:
        expression = re.compile(f"(?:{pattern})$")
    except re.error as error:
        cause = f"{pattern!r} in {_CONFIG} is not a regular expression: {error}."
        raise MapError(cause, f"Correct {_CONFIG}.") from None
    starts = [0, *(at + 1 for at, letter in enumerate(module) if letter == ".")]
    return any(expression.match(module, start) for start in starts)


def _rules(one: tuple[str, str], terms: Sequence[str], length: str) -> list[str]:
    side = terms[0].removeprefix("0/")
    total = " + ".join(terms)
    if not length or one[1] != "weight":
        return [f"{total} -> {side}"]
    axes = side[side.rindex("[") :]
    value = f"${_quoted(one[0])}"
    rows = axes.replace("i", "j")
    lengths = f"sqrt(sum(j: {value}{rows} {value}{rows}))"
    return [f"{total} -> {value}{axes}", f"{value}{axes} * {length} / {lengths} -> {side}"]


def _by_kind(rules: Sequence[str]) -> list[str]:
    """Return one rule for all that differ in the same numbers, if no other rule is of their kind."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for rule in rules:
        module = rule[rule.rindex(" -> ") + 4 :].removeprefix("$")
        module = module[: module.rindex("[")]
        numbers = _NUMBER.findall(module)
        kind = _with_names(module)
        is_plain = bool(numbers) and "'" not in rule
        general = rule.replace(_stem(module), _with_names(_stem(module))) if is_plain else rule
        kinds.setdefault(kind + ("$" if " -> $" in rule else ""), []).append((rule, general))
    found = list[str]()
    for some in kinds.values():
        generals = {general for _, general in some}
        found += [*generals] if len(generals) == 1 else [rule for rule, _ in some]
    return found


def _stem(module: str) -> str:
    return module.rpartition(".")[0]


def _with_names(module: str) -> str:
    names = iter("lmnpqst")
    return _NUMBER.sub(lambda number: f"{{{next(names, number[0])}}}", module)


def _quoted(text: str) -> str:
    """A part of a key as a rule writes it."""
    return text if re.fullmatch(r"[A-Za-z0-9_./-]+", text) else "'" + text.replace("'", "''") + "'"
