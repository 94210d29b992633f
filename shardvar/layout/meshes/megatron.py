"""Megatron-core's ShardedTensor: what each rank saves of a tensor of a model (megatron-core
0.16.1).

Ranks are counted with tensor parallelism fastest, so the mesh in C order is ``(pp, dp, cp, tp)``.
Experts have a second mesh over the same ranks, ``(pp, expert_dp, ep, expert_tp)``. Axes may be left
out, and are then of one device.

    column parallel   axis 0 of the weight [out, in] in tp parts, also the bias, query, key and
                      value together
    row parallel      axis 1 in tp parts; the bias is whole on each rank
    vocabulary        axis 0 in tp parts, after the vocabulary was padded: ``padded_vocabulary``
    gated             axis 0 is [gate; up]: a rank holds its part of each
    layers, experts   axes in front of the tensor's; each layer, and each expert, is a
                      ShardedTensor, so a region

All local tensors of a key are equal: "100 is not divisible by 8" is an error of Megatron, and
nothing is uneven.

Pipeline stages (``TransformerConfig``). Every stage has the same number of layers, unless the first
or the last one is given another. The embedding and the loss may count as layers, so the stages that
hold them have fewer layers of the model. With virtual stages a rank holds several ranges of layers:
"Stage 0: [0, 1] [4, 5], Stage 1: [2, 3] [6, 7]" is 8 layers on 2 stages of 2 virtual stages. A
layout of the pipeline as text lists the stages: "Et*3|(tt|)*2L".

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
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from shardvar.errors import ArgumentError, LayoutError, OutOfRange
from shardvar.layout.dtypes import Ints, Shape
from shardvar.layout.meshes.layout import Intervals, Layout, Mesh, check_mesh
from shardvar.layout.partition import Interval
from shardvar.layout.region import Region, read_integers, read_shape


def padded_vocabulary(size: int, tensor_parallel: int, multiple: int = 128) -> int:
    """The number of rows of an embedding for a vocabulary, padded to a multiple that all ranks
    divide.

    The rows from `size` on are padding, and their number depends on the parallelism: to reshard,
    load the rows that both have.

    Parameters
    ----------
    size : int
        The number of words.
    tensor_parallel : int
        The number of ranks of tensor parallelism.
    multiple : int, default 128
        Megatron's make_vocab_size_divisible_by.

    Returns
    -------
    int
        The next multiple of ``multiple * tensor_parallel``.

    Raises
    ------
    ArgumentError
        If `size` is negative, or another argument below 1.

    Examples
    --------
    >>> padded_vocabulary(50257, 1), padded_vocabulary(50257, 8)
    (50304, 51200)
    """
    if size < 0 or tensor_parallel < 1 or multiple < 1:
        raise ArgumentError(
            f"A vocabulary of {size} words cannot be padded for {tensor_parallel} ranks to a "
            f"multiple of {multiple}.",
            "Give positive numbers.",
        )
    step = multiple * tensor_parallel
    return -(-size // step) * step


def vocabulary_range(size: int, rank: int, world_size: int) -> Interval:
    """The words of one rank.

    Parameters
    ----------
    size : int
        The number of words, padding included.
    rank : int
        The number of the rank, from 0.
    world_size : int
        The number of ranks.

    Returns
    -------
    tuple of int
        (start, stop), the first word and the word behind the last.

    Raises
    ------
    LayoutError
        If the ranks do not divide the vocabulary.
    OutOfRange
        If `rank` is not one of ``world_size`` ranks.

    Examples
    --------
    >>> vocabulary_range(96, 1, 4)
    (24, 48)
    """
    if world_size < 1 or size < 0 or size % world_size:
        raise LayoutError(
            f"A vocabulary of {size} words is not divisible by {world_size} ranks.",
            "Pad it with padded_vocabulary.",
        )
    if not 0 <= rank < world_size:
        raise OutOfRange(
            f"There is no rank {rank} of {world_size}.",
            f"Give a number from 0 to {world_size - 1}.",
        )
    return rank * size // world_size, (rank + 1) * size // world_size


StageLayers = tuple[tuple[Interval, ...], ...]
"""For each pipeline stage, the range of layers of each of its virtual stages."""

_LONGEST = 1 << 16  # Letters of a pipeline's layout after repetition: more than any model has


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
    # The other stages share what the given ones leave: of 7 layers on 3 stages, the first with 1,
    # two stages share 6.
    given = [each for each in (first, last) if each is not None]
    left, middle = num_layers - sum(given), stages - len(given)
    is_possible = min([*given, 1]) >= 1 and left >= 0 and middle >= 0
    # Without other stages no layer may be left, and each of them has at least one. In Megatron:
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
    layers: list[list[Interval]] = [[] for _ in sizes]
    start = 0
    for place in range(len(sizes[0])):
        for stage, counts in enumerate(sizes):
            layers[stage].append((start, start + counts[place]))
            start += counts[place]
    return tuple(map(tuple, layers))


Parallel = Literal["column", "row", "vocabulary"]  # a kind of tensor parallelism

_RULE = "Megatron ShardedTensor (megatron-core 0.16)"

_AXES = ("pp", "dp", "cp", "tp", "expert_dp", "ep", "expert_tp")


def megatron(
    shape: Sequence[int],
    mesh: Mesh,
    parallel: Parallel | None = None,
    *,
    layers: bool | Sequence[Sequence[Interval]] = False,
    experts: bool = False,
    gated: bool = False,
    stage: int | None = None,
) -> Layout:
    """The layout of a tensor of a Megatron model.

    Parameters
    ----------
    shape : sequence of int
        The shape of the tensor in the checkpoint, the axes of layers and experts included.
    mesh : Mesh
        The ranks. Its axes have names from ``pp``, ``dp``, ``cp``, ``tp``, ``expert_dp``, ``ep``
        and ``expert_tp``.
    parallel : {"column", "row", "vocabulary"}, optional
        The kind of tensor parallelism; None keeps the tensor whole on the ranks of tensor
        parallelism.
    layers : bool or sequence of sequences of (start, stop), default False
        True: the first axis counts layers, which the pipeline stages share equally; or the ranges
        of each stage, as `pipeline_layers` gives them.
    experts : bool, default False
        True: the axis behind the axis of layers counts experts.
    gated : bool, default False
        True: the axis that is cut is [gate; up], and a rank holds its part of each.
    stage : int, optional
        The pipeline stage that holds the tensor, -1 the last one; None if all of them do.

    Returns
    -------
    Layout
        A region for each ShardedTensor of each rank.

    Raises
    ------
    LayoutError
        If an extent does not divide.
    ArgumentError
        If `mesh` has an axis that Megatron does not have, `parallel` is another text, or a gated
        tensor is not column parallel.
    OutOfRange
        If the mesh does not have the stage, or the tensor an axis that is cut.

    Examples
    --------
    >>> fc1 = megatron((4, 32, 8), Mesh((2, 2), ("pp", "tp")), "column", layers=True, gated=True)
    >>> [str(region) for region in fc1.regions(3)]
    ['[2:3, 8:16, 0:8]', '[2:3, 24:32, 0:8]', '[3:4, 8:16, 0:8]', '[3:4, 24:32, 0:8]']
    """
    check_mesh(mesh)
    _check_arguments(mesh, parallel, gated)
    extents = read_shape(shape)
    axes = [Intervals.whole(extent, mesh.size) for extent in extents]
    first = (layers is not False) + experts
    cut = first + (parallel == "row")
    if max(first, cut + 1 if parallel else 0) > len(extents):
        raise OutOfRange(
            f"The shape {extents} has no axis {max(first - 1, cut)}.",
            "Give all axes of the checkpoint.",
        )
    if layers is not False:
        axes[0] = _singles(
            _cut(extents, 0, mesh, "pp") if layers is True else _on_stages(extents, mesh, layers)
        )
    if experts:
        axes[first - 1] = _singles(_cut(extents, first - 1, mesh, "ep"))
    if parallel:
        tensor = "expert_tp" if "expert_tp" in (mesh.axis_names or ()) else "tp"
        axes[cut] = _cut(extents, cut, mesh, tensor, halves=2 if gated else 1)
    layout = Layout.from_axes(extents, mesh, _RULE, axes)
    if stage is None:
        return layout
    # Only the ranks of that pipeline stage.
    stages, place = _along(mesh, "pp")
    if not -stages <= stage < stages:
        raise OutOfRange(f"The mesh {mesh} has no pipeline stage {stage}.", f"It has {stages}.")
    keep = place[layout.device] == stage % stages
    return replace(
        layout, device=layout.device[keep], offset=layout.offset[keep], extent=layout.extent[keep]
    )


def replica_id(mesh: Mesh, device: int, parallel: Parallel | None = None) -> tuple[int, int, int]:
    """The ``replica_id`` with which a rank saves a tensor; the rank whose numbers are all 0 stores
    it.

    Parameters
    ----------
    mesh : Mesh
        The ranks, with axes named as in ``megatron``.
    device : int
        The number of the rank.
    parallel : {"column", "row", "vocabulary"}, optional
        The kind of tensor parallelism of the tensor.

    Returns
    -------
    tuple of int
        (pp, tp, dp).

    Raises
    ------
    ArgumentError
        If `mesh` has an axis that Megatron does not have, or `parallel` is another text.
    OutOfRange
        If the mesh does not have the rank.

    Examples
    --------
    >>> mesh = Mesh((2, 2), ("dp", "tp"))
    >>> [replica_id(mesh, device) for device in range(4)]
    [(0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)]
    >>> replica_id(mesh, 1, "column")
    (0, 0, 0)
    """
    check_mesh(mesh)
    _check_arguments(mesh, parallel, gated=False)
    at = dict(zip(mesh.axis_names or (), mesh.coordinate(device), strict=True))
    if "ep" in at:
        return 0, 0, at.get("expert_dp", 0)
    copies = at.get("dp", 0) * _along(mesh, "cp")[0] + at.get("cp", 0)
    return 0, 0 if parallel else at.get("tp", 0), copies


def from_rank_offsets(
    local_shape: Sequence[int],
    *rank_offsets: tuple[int, int, int],
    prepend_axis_num: int = 0,
    flattened_range: object = None,
) -> tuple[Shape, Region]:
    """The full shape and the region of ``ShardedTensor.from_rank_offsets``.

    Parameters
    ----------
    local_shape : sequence of int
        The shape of the local tensor.
    *rank_offsets : tuple of int
        (axis, i, n): along this axis, counted with the prepended ones, the local tensor is number i
        of n equal ones. As in Megatron, an axis may be given twice, and the last one counts.
    prepend_axis_num : int, default 0
        The number of axes in front of the tensor's, in which the local tensor has the extent 1.
    flattened_range : object, optional
        Megatron gave flat ShardedTensors up, and refuses any value.

    Returns
    -------
    shape : tuple of int
        The full shape.
    region : Region
        The region of the local tensor in it.

    Raises
    ------
    ArgumentError
        If an offset is not of the form (axis, i, n) with 0 <= i < n, `prepend_axis_num` is
        negative, or a `flattened_range` is given.
    OutOfRange
        If an offset names an axis that the tensor does not have.

    Examples
    --------
    >>> shape, region = from_rank_offsets((3, 4), (0, 2, 5), (1, 1, 2), prepend_axis_num=1)
    >>> shape, str(region)
    ((5, 6, 4), '[2:3, 3:6, 0:4]')
    """
    local = _with_prepended(local_shape, prepend_axis_num, flattened_range)
    offset, shape = [0] * len(local), list(local)
    for given in rank_offsets:
        numbers = read_integers(given, "rank offset")
        if len(numbers) != 3 or min(numbers) < 0 or numbers[1] >= numbers[2]:
            raise ArgumentError(
                f"The rank offset {numbers} is not valid.", "Give (axis, i, n) with 0 <= i < n."
            )
        axis, number, count = numbers
        if axis >= len(local):
            raise OutOfRange(
                f"The rank offset {numbers} names axis {axis} of {len(local)}.",
                "Count axes from 0.",
            )
        offset[axis], shape[axis] = number * local[axis], count * local[axis]
    return tuple(shape), Region(offset, local)


def sharded_tensor(
    local_shape: Sequence[int],
    global_shape: Sequence[int],
    global_offset: Sequence[int],
    axis_fragmentations: Sequence[int] | None = None,
    *,
    prepend_axis_num: int = 0,
    flattened_range: object = None,
) -> Region:
    """Return the region of a ``ShardedTensor`` that is constructed from its fields.

    Parameters
    ----------
    local_shape : sequence of int
        The shape of the local tensor.
    global_shape : sequence of int
        The shape of the full tensor, prepended axes included.
    global_offset : sequence of int
        The offset of the local tensor in it.
    axis_fragmentations : sequence of int, optional
        If given, the local tensors are a regular grid: "Global offset must be divisible by local
        shape".
    prepend_axis_num : int, default 0
        The number of axes in front of the local tensor's.
    flattened_range : object, optional
        Megatron gave flat ShardedTensors up, and refuses any value.

    Returns
    -------
    Region
        The region, in the coordinates of the full tensor.

    Raises
    ------
    ArgumentError
        If the offset is off the grid, ranks disagree, or a `flattened_range` is given.
    OutOfRange
        If the region leaves the tensor, which Megatron notices only when it saves.

    Examples
    --------
    >>> str(sharded_tensor((4,), (12,), (6,)))
    '[6:10]'
    >>> str(sharded_tensor((3, 4), (5, 6, 4), (2, 3, 0), (5, 2, 1), prepend_axis_num=1))
    '[2:3, 3:6, 0:4]'
    """
    local = _with_prepended(local_shape, prepend_axis_num, flattened_range)
    shape, offset = read_shape(global_shape), read_shape(global_offset)
    if not len(local) == len(shape) == len(offset):
        raise ArgumentError(
            f"The local shape {tuple(local_shape)} with {prepend_axis_num} axes in front, the "
            f"global shape {shape} and "
            f"the global offset {offset} have {len(local)}, {len(shape)} and {len(offset)} axes.",
            "Give one number for each axis of the full tensor.",
        )
    if axis_fragmentations is not None and any(
        at % size for at, size in zip(offset, local, strict=True) if size
    ):
        raise ArgumentError(
            f"The global offset {offset} is not a multiple of the local shape {local}.",
            "Give None for axis_fragmentations if the local tensors are not a regular grid.",
        )
    if any(at + size > extent for at, size, extent in zip(offset, local, shape, strict=True)):
        raise OutOfRange(
            f"A local tensor of shape {local} at {offset} leaves the global shape {shape}.",
            "Give offsets within it.",
        )
    return Region(offset, local)


def _check_arguments(mesh: Mesh, parallel: str | None, gated: bool) -> None:
    """Raise ``ArgumentError`` for a mesh or a kind of parallelism that Megatron does not have."""
    for name in mesh.axis_names or ("",) * mesh.rank:
        if name not in _AXES:
            raise ArgumentError(
                f"The mesh {mesh} has an axis that Megatron lacks.", f"Use {', '.join(_AXES)}."
            )
    if parallel is not None and parallel not in get_args(Parallel):
        raise ArgumentError(
            f"parallel is {parallel!r}.", f"Give one of {get_args(Parallel)}, or None."
        )
    if gated and parallel != "column":
        raise ArgumentError(
            f"A gated tensor is column parallel, and parallel is {parallel!r}.", "Give 'column'."
        )


def _with_prepended(
    local_shape: Sequence[int], prepend_axis_num: int, flattened_range: object
) -> Shape:
    """The local shape with the axes in front of it, each of extent 1."""
    if flattened_range is not None:
        raise ArgumentError(
            f"flattened_range is {flattened_range!r}, and Megatron has no flat ShardedTensor any "
            "more.",
            "Give the local tensor in its own shape; `fsdp_flat` and `deepspeed` describe flat "
            "parameters.",
        )
    if prepend_axis_num < 0:
        raise ArgumentError(
            f"prepend_axis_num is {prepend_axis_num}.", "Give the number of axes in front, or 0."
        )
    return (*[1] * prepend_axis_num, *read_shape(local_shape))


def _on_stages(shape: Shape, mesh: Mesh, layers: Sequence[Sequence[Interval]]) -> Intervals:
    """The first axis; each pipeline stage holds the layers that it is given."""
    stages, part = _along(mesh, "pp")
    check_stage_layers(layers, shape[0], stages)
    rows = [
        (stage, *each) for stage, held in enumerate(layers) for each in held if each[0] < each[1]
    ]
    owner, start, stop = np.array(rows, np.int64).reshape(-1, 3).T
    return Intervals(owner, start, stop, part, stages)


def _along(mesh: Mesh, name: str) -> tuple[int, Ints]:
    """The extent of a mesh axis, and the place of each device on it; 1 and 0 without the axis."""
    if name not in (mesh.axis_names or ()):
        return 1, np.zeros(mesh.size, np.int64)
    axis = mesh.axis(name)
    return mesh.shape[axis], mesh.coordinates()[:, axis]


def _cut(shape: Shape, dim: int, mesh: Mesh, name: str, halves: int = 1) -> Intervals:
    """An axis of the tensor that a mesh axis cuts: an equal part a device of each half."""
    count, part = _along(mesh, name)
    extent = shape[dim]
    if extent % (halves * count):
        raise LayoutError(
            f"Axis {dim} of the shape {shape} has {extent} indices, which Megatron does not cut "
            f"into {halves * count} uneven parts.",
            f"Choose a number of {name} ranks that divides it, or pad it (a vocabulary: "
            "padded_vocabulary).",
        )
    size = extent // (halves * count)
    # A list for each part. The halves stay apart, also where one device holds both: each is a
    # ShardedTensor.
    owner = np.repeat(np.arange(count if extent else 0), halves)
    start = (np.tile(np.arange(halves), len(owner) // halves) * count + owner) * size
    return Intervals(owner, start, start + size, part, count)


def _singles(axis: Intervals) -> Intervals:
    """The same indices with an interval for each, as each layer and each expert is a tensor."""
    lengths = axis.stop - axis.start
    ends = np.cumsum(lengths)
    start = np.arange(lengths.sum()) + np.repeat(axis.start - (ends - lengths), lengths)
    return replace(axis, owner=np.repeat(axis.owner, lengths), start=start, stop=start + 1)
