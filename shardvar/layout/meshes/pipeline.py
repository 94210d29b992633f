"""Pipeline stages of Megatron: the layers that each stage holds (megatron-core 0.16.1,
``TransformerConfig``).

Every stage has the same number of layers, unless the first or the last one is given another. The
embedding and the loss may count as layers, so the stages that hold them have fewer layers of the
model. With virtual stages a rank holds several ranges of layers: "Stage 0: [0, 1] [4, 5], Stage 1:
[2, 3] [6, 7]" is 8 layers on 2 stages of 2 virtual ones. A layout of the pipeline as text says it
stage by stage: "Et*3|(tt|)*2L".

1. ``_sizes`` counts the layers of each virtual stage of each stage, by one of the three rules.
2. Layers are numbered in the order of virtual stages, and within one of them in the order of
   stages.

>>> pipeline_layers(8, 2, virtual_pipeline_model_parallel_size=2)
(((0, 2), (4, 6)), ((2, 4), (6, 8)))
>>> pipeline_layers(7, 4, account_for_embedding_in_pipeline_split=True)
(((0, 1),), ((1, 3),), ((3, 5),), ((5, 7),))
>>> pipeline_layers(3, 2, pipeline_model_parallel_layout="Et|ttL")
(((0, 1),), ((1, 3),))
"""

import re
from collections.abc import Sequence

from shardvar.errors import ArgumentError, LayoutError
from shardvar.layout.partition import Interval

StageLayers = tuple[tuple[Interval, ...], ...]
"""For each pipeline stage, the range of layers of each of its virtual stages."""

_LONGEST = 1 << 16
"""Letters of a pipeline's layout after repetition: more than any model has."""


def pipeline_layers(
    num_layers: int,
    stages: int,
    *,
    num_layers_in_first_pipeline_stage: int | None = None,
    num_layers_in_last_pipeline_stage: int | None = None,
    account_for_embedding_in_pipeline_split: bool = False,
    account_for_loss_in_pipeline_split: bool = False,
    virtual_pipeline_model_parallel_size: int = 1,
    pipeline_model_parallel_layout: str | None = None,
) -> StageLayers:
    """Return the layers of each pipeline stage, by the arguments of Megatron's
    ``TransformerConfig``.

    Parameters
    ----------
    num_layers : int
        The layers of the model.
    stages : int
        The stages, ``pipeline_model_parallel_size``.
    num_layers_in_first_pipeline_stage : int, optional
        The layers of the first stage; None if it has as many as the others.
    num_layers_in_last_pipeline_stage : int, optional
        The same of the last stage.
    account_for_embedding_in_pipeline_split : bool, default False
        True: the embedding counts as a layer of the first stage, which has one less.
    account_for_loss_in_pipeline_split : bool, default False
        The same of the loss and the last stage.
    virtual_pipeline_model_parallel_size : int, default 1
        The virtual stages of each stage.
    pipeline_model_parallel_layout : str, optional
        All stages as text: ``E`` is the embedding, ``t`` a layer, ``m`` a layer that predicts
        several tokens, ``L`` the loss, ``|`` the end of a stage; ``t*3`` and ``(t|)*3`` repeat.

    Returns
    -------
    tuple of tuples of (start, stop)
        For each stage, the range of layers of each of its virtual stages.

    Raises
    ------
    LayoutError
        If the layers do not divide.
    ArgumentError
        If Megatron does not combine the arguments.

    Examples
    --------
    >>> pipeline_layers(7, 3, num_layers_in_first_pipeline_stage=1)
    (((0, 1),), ((1, 4),), ((4, 7),))
    """
    ends = (num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage)
    counted = (account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split)
    virtual, text = virtual_pipeline_model_parallel_size, pipeline_model_parallel_layout
    if min(num_layers, stages, virtual) < 1:
        raise ArgumentError(
            f"{num_layers} layers cannot be divided over {stages} stages of {virtual} virtual "
            "ones.",
            "Give numbers from 1 on.",
        )
    if (text is not None) + (ends != (None, None)) + any(counted) > 1:
        raise ArgumentError(
            "Megatron divides layers over pipeline stages in one way, and several are given.",
            "Give numbers of layers of the first and the last stage, or count the embedding and "
            "the loss, or a layout.",
        )
    if text is not None:
        return _numbered(_sizes_of_text(text, num_layers, stages, virtual))
    return _numbered(_sizes(num_layers, stages, ends, counted, virtual))


def check_stage_layers(layers: Sequence[Sequence[Interval]], num_layers: int, stages: int) -> None:
    """Raise ``LayoutError`` unless the ranges of all stages hold each layer once."""
    found = sorted((start, stop) for stage in layers for start, stop in stage if start < stop)
    ends = [0, *(stop for _, stop in found)]
    if (
        len(layers) != stages
        or ends[-1] != num_layers
        or ends[:-1] != [start for start, _ in found]
    ):
        raise LayoutError(
            f"The {len(layers)} pipeline stages {tuple(layers)} do not hold each of {num_layers} "
            f"layers once on a mesh of {stages} stages.",
            "Give ranges for each stage of the mesh, as pipeline_layers does.",
        )


def _sizes(
    num_layers: int,
    stages: int,
    ends: tuple[int | None, int | None],
    counted: tuple[bool, bool],
    virtual: int,
) -> list[list[int]]:
    """The number of layers of each virtual stage of each stage; ``counted``: the embedding and the
    loss are layers."""
    # The embedding and the loss are divided like layers, and taken out again below: 7 layers and
    # the embedding on 4 stages make 2 2 2 2, so the first stage has 1 layer of the model.
    by_stage = _stage_sizes(num_layers + sum(counted), stages, *ends)
    uneven = [size for size in by_stage if size % virtual]
    if uneven:
        raise LayoutError(
            f"A pipeline stage of {uneven[0]} layers cannot be divided into {virtual} virtual "
            "stages.",
            "Choose a number of virtual stages that divides it.",
        )
    if None not in ends and stages == 2 and virtual > 1:
        raise LayoutError(
            "Megatron divides layers by the number of stages between the first and the last, "
            "which is 0 of 2.",
            "With virtual stages, name the layers of one of them.",
        )
    sizes = [[size // virtual] * virtual for size in by_stage]
    sizes[0][0] -= counted[0]
    sizes[-1][-1] -= counted[1]
    if min(map(min, sizes)) < 0:
        raise LayoutError(
            f"A stage of 1 of {num_layers} layers holds the embedding and the loss.",
            "Use fewer stages.",
        )
    return sizes


def _stage_sizes(num_layers: int, stages: int, first: int | None, last: int | None) -> list[int]:
    """The number of layers of each stage."""
    # The other stages share what the given ones leave: of 7 layers on 3 stages, the first with 1,
    # two stages share 6.
    given = [each for each in (first, last) if each is not None]
    left, middle = num_layers - sum(given), stages - len(given)
    is_possible = min([*given, 1]) >= 1 and left >= 0 and middle >= 0
    # Without other stages no layer may be left, and each of them has at least one. Megatron says:
    # "Mismatch: 3 middle layers remaining but 0 middle PP stages available."
    divides = left > 0 and left % middle == 0 if middle else left == 0
    if not (is_possible and divides):
        raise LayoutError(
            f"{num_layers} layers cannot be divided over {stages} pipeline stages if the first "
            f"has {first} and the last {last}: {left} layers are left for {middle} equal stages.",
            "Choose numbers that leave a divisible rest. None is a stage like the others.",
        )
    sizes = [left // middle] * middle if middle else []
    if first is not None:
        sizes.insert(0, first)
    if last is not None:
        sizes.append(last)
    return sizes


def _sizes_of_text(text: str, num_layers: int, stages: int, virtual: int) -> list[list[int]]:
    """The number of layers of each virtual stage in a layout of the pipeline as text."""
    # One place for each virtual stage, by rounds: on 2 stages, place 0 and place 2 are of stage 0.
    # "Et|t|t|L" has the places Et, t, t and L: 2 and 1 layers on stage 0, 1 and 0 on stage 1.
    places = _unrolled(text.replace(",", "")).split("|")
    letters = "".join(places)
    count = letters.count("t")
    if len(places) % stages or virtual not in (1, len(places) // stages) or count != num_layers:
        raise LayoutError(
            f"The layout {text!r} has {len(places)} stages and {count} layers, for {stages} "
            f"pipeline stages of {virtual} virtual ones and {num_layers} layers.",
            "Give a multiple of the stages, with a t for each layer.",
        )
    # "All of the MTP layers must be in the same one virtual pipeline stage", which is the last one
    # of its rank.
    with_m = [number for number, place in enumerate(places) if "m" in place]
    is_last_of_rank = min([len(places), *with_m]) + stages >= len(places)
    if not re.fullmatch("Et*m*L", letters) or len(with_m) > 1 or not is_last_of_rank:
        raise LayoutError(
            f"The layout {text!r} has its letters in an order that Megatron does not build.",
            "Begin with E, then t, then m in one stage of the last ones, and end with L.",
        )
    return [
        [places[place].count("t") for place in range(stage, len(places), stages)]
        for stage in range(stages)
    ]


def _unrolled(text: str) -> str:
    """The text with its repetitions written out; ``ArgumentError`` for wrong letters."""
    for pattern in (r"\(([^()]+)\)\*(\d{1,6})(?!\d)", r"([EtmL|])\*(\d{1,6})(?!\d)"):
        length = len(text)
        for match in re.finditer(pattern, text):
            length += len(match[1]) * int(match[2])
        if length > _LONGEST:
            raise ArgumentError(
                f"The layout of the pipeline has more than {_LONGEST} letters.",
                "Shorten its repetitions.",
            )
        text = re.sub(pattern, lambda match: match[1] * int(match[2]), text)
    if re.search(r"[^EtmL|]", text):
        raise ArgumentError(
            f"The layout of the pipeline is {text!r} after its repetitions.",
            "Use only E, t, m, L, |, (...)*n and t*n.",
        )
    return text


def _numbered(sizes: Sequence[Sequence[int]]) -> StageLayers:
    """Number the layers by virtual stage, and within one by stage."""
    layers: list[list[Interval]] = [[] for _ in sizes]
    start = 0
    for place in range(len(sizes[0])):
        for stage, counts in enumerate(sizes):
            layers[stage].append((start, start + counts[place]))
            start += counts[place]
    return tuple(map(tuple, layers))
