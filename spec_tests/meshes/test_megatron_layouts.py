"""Megatron's layouts: every case that megatron-core 0.16 recorded, refusals included."""

import json
from typing import Any

import pytest

from shardvar.errors import ArgumentError, LayoutError, OutOfRange
from shardvar.layout.meshes import (
    Layout,
    from_rank_offsets,
    megatron,
    padded_vocabulary,
    pipeline_layers,
    replica_id,
    sharded_tensor,
    vocabulary_range,
)
from shardvar.layout.meshes.layout import Mesh
from spec_tests.helpers.layout_tables import Case, cases, each_row, held, recorded
from spec_tests.helpers.megatron_pipelines import TABLE, stages_of

KINDS: dict[str, dict[str, Any]] = {
    "embedding.word_embeddings.weight": {"parallel": "vocabulary", "stage": 0},
    "embedding.position_embeddings.weight": {"stage": 0},
    "output_layer.weight": {"parallel": "vocabulary", "stage": -1},
    "decoder.final_layernorm.weight": {"stage": -1},
    "linear_qkv": {"parallel": "column", "layers": True},
    "linear_fc1": {"parallel": "column", "layers": True},
    "linear_proj.weight": {"parallel": "row", "layers": True},
    "linear_fc2.weight": {"parallel": "row", "layers": True},
    "linear_proj.bias": {"layers": True},
    "linear_fc2.bias": {"layers": True},
    "router": {"layers": True},
}
"""Parts of keys -> the arguments for the tensors that have them."""


def arguments_of(case: Case) -> dict[str, Any]:
    """Return the arguments of a recorded tensor."""
    [arguments] = [arguments for part, arguments in KINDS.items() if part in case["key"]]
    gated = "linear_fc1" in case["key"] and case["layout"]["gated"]
    return {"experts": ".experts." in case["key"], "gated": gated, **arguments}


def mesh_of(case: Case) -> Mesh:
    mesh = case["mesh"]
    if ".experts." in case["key"]:
        return Mesh(mesh["expert_shape"], mesh["expert_axes"])
    return Mesh(mesh["shape"], mesh["axes"])


def layout_of(case: Case) -> Layout:
    return megatron(case["shape"], mesh_of(case), **arguments_of(case))


@each_row(cases("megatron", "model"))
def test_a_rank_saves_what_it_saves_in_megatron_and_has_its_replica_id(case: Case) -> None:
    """Regions in the order of layers, experts and halves; the groups of ranks that hold the same,
    and of each group one has numbers that are all 0."""
    layout = layout_of(case)
    assert held(layout) == recorded(case)
    groups = [list(group) for group in layout.replicas if layout.regions(group[0])]
    assert groups == case["replicas"]
    mesh, parallel = mesh_of(case), arguments_of(case).get("parallel")
    for device in case["devices"]:
        assert {tuple(each) for each in device["replica_id"]} <= {
            replica_id(mesh, device["device"], parallel)
        }
    for group in case["replicas"]:
        assert [replica_id(mesh, device, parallel) for device in group].count((0, 0, 0)) == 1


def offsets_of(case: Case) -> dict[str, Any]:
    return {name: case[name] for name in ("prepend_axis_num", "flattened_range") if name in case}


@each_row(cases("megatron", "from_rank_offsets"))
def test_rank_offsets_mean_what_they_mean_in_megatron(case: Case) -> None:
    shape, region = from_rank_offsets(
        case["local_shape"], *case["rank_offsets"], **offsets_of(case)
    )
    assert shape == tuple(case["shape"])
    assert region.offset == tuple(case["region"]["offset"])
    assert region.shape == tuple(case["region"]["shape"])


@each_row(cases("megatron", "from_rank_offsets", refused=True))
def test_rank_offsets_that_megatron_refuses_are_refused(case: Case) -> None:
    with pytest.raises(ArgumentError) as caught:
        from_rank_offsets(case["local_shape"], *case["rank_offsets"], **offsets_of(case))
    assert caught.value.remedy


FIELDS = ("local_shape", "global_shape", "global_offset", "axis_fragmentations")


@each_row(cases("megatron", "constructor"))
def test_fields_that_megatron_accepts_are_a_region(case: Case) -> None:
    assert case["accepted"]
    region = sharded_tensor(*(case[name] for name in FIELDS))
    assert (region.offset, region.shape) == (
        tuple(case["global_offset"]),
        tuple(case["local_shape"]),
    )


@each_row(cases("megatron", "constructor", refused=True))
def test_fields_that_megatron_refuses_are_refused(case: Case) -> None:
    """Offsets off the grid, where the local tensors are said to be one; without that they are a
    region."""
    fields = [case[name] for name in FIELDS]
    with pytest.raises(ArgumentError, match="not a multiple") as caught:
        sharded_tensor(*fields)
    assert "axis_fragmentations" in caught.value.remedy
    assert sharded_tensor(*fields[:-1]).offset == tuple(case["global_offset"])


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (((3,), (12, 4), (0,)), ArgumentError),
        (((3,), (12,), (0, 0)), ArgumentError),
        (((3,), (12,), (10,)), OutOfRange),
        (((3,), (12,), (-3,)), ArgumentError),
        (((3,), (12,), (12,), (4,)), OutOfRange),
        (((3, 4), (12, 8), (3, 2), (4, 2)), ArgumentError),  # off the grid along one axis of two
    ],
)
def test_fields_that_describe_no_part_of_the_tensor_are_refused(
    fields: Any, error: type[ArgumentError]
) -> None:
    with pytest.raises(error) as caught:
        sharded_tensor(*fields)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("layers", "stages", "arguments", "expected"),
    [
        (8, 2, {}, [[(0, 4)], [(4, 8)]]),
        (9, 3, {"num_layers_in_first_pipeline_stage": 1}, [[(0, 1)], [(1, 5)], [(5, 9)]]),
        (9, 3, {"num_layers_in_last_pipeline_stage": 3}, [[(0, 3)], [(3, 6)], [(6, 9)]]),
        (1, 3, {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True},
         [[(0, 0)], [(0, 1)], [(1, 1)]]),
        (8, 2, {"num_layers_in_first_pipeline_stage": 2, "virtual_pipeline_model_parallel_size": 2},
         [[(0, 1), (4, 5)], [(1, 4), (5, 8)]]),
        (5, 2, {"pipeline_model_parallel_layout": "Et|tt|t|tL"}, [[(0, 1), (3, 4)], [(1, 3), (4, 5)]]),
    ],
)  # fmt: skip
def test_stages_of_a_pipeline_hold_the_layers_that_they_are_given(
    layers: int, stages: int, arguments: Any, expected: Any
) -> None:
    """As megatron-core's own configuration divides them, which the peers' tests ask; also in a
    layout of a tensor."""
    held = pipeline_layers(layers, stages, **arguments)
    assert [list(stage) for stage in held] == expected
    layout = megatron((layers, 4, 2), Mesh((stages, 2), ("pp", "tp")), "column", layers=held)
    for device in range(2 * stages):
        rows = [region.offset[0] for region in layout.regions(device)]
        assert rows == [row for start, stop in expected[device // 2] for row in range(start, stop)]


@pytest.mark.parametrize(
    ("layers", "stages", "arguments"),
    [
        (8, 2, {"virtual_pipeline_model_parallel_size": 0}),
        (8, 3, {"num_layers_in_first_pipeline_stage": 9}),
        (
            8,
            2,
            {"num_layers_in_first_pipeline_stage": 4, "account_for_loss_in_pipeline_split": True},
        ),
        (
            1,
            1,
            {"account_for_loss_in_pipeline_split": True, "virtual_pipeline_model_parallel_size": 3},
        ),
        (4, 2, {"pipeline_model_parallel_layout": "Et|tL"}),
        (2, 2, {"pipeline_model_parallel_layout": "Et|xtL"}),
        (2, 2, {"pipeline_model_parallel_layout": "E(t*9999999)*9999999L"}),
        (2, 2, {"pipeline_model_parallel_layout": "E((t)*99999|)*99999L"}),
    ],
)
def test_pipelines_that_megatron_does_not_build_are_refused(
    layers: int, stages: int, arguments: Any
) -> None:
    with pytest.raises(ArgumentError) as caught:
        pipeline_layers(layers, stages, **arguments)
    assert caught.value.remedy


def pipeline_of(layers: int, stages: int, **arguments: Any) -> Any:
    """Return the layers of each stage; None if they are refused."""
    try:
        return pipeline_layers(layers, stages, **arguments)
    except ArgumentError as error:
        assert error.remedy
        return None


def test_every_small_pipeline_is_built_or_refused_as_in_megatron() -> None:
    """All numbers of layers and stages up to 8 and 4, all ends, and all short layouts as text."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    for given, rows in table["numbers"].items():
        for layers, stages, expected in rows:
            found = pipeline_of(layers, stages, **json.loads(given))
            assert found == stages_of(expected), (layers, stages, given)
    for text, stages, expected in table["texts"]:
        found = pipeline_of(text.count("t"), stages, pipeline_model_parallel_layout=text)
        assert found == stages_of(expected), (text, stages)
        places = (text.count("|") + 1) // stages
        for virtual in (1, 2, 3):
            some = pipeline_of(
                text.count("t"), stages, pipeline_model_parallel_layout=text,
                virtual_pipeline_model_parallel_size=virtual,
            )  # fmt: skip
            assert some == (found if virtual in (1, places) else None), (text, stages, virtual)


def test_layers_that_the_stages_do_not_hold_once_are_refused() -> None:
    mesh = Mesh((2,), ("pp",))
    for layers in (
        [[(0, 4)]],
        [[(0, 2)], [(3, 4)]],
        [[(0, 3)], [(2, 4)]],
        [[(0, 2)], [(2, 3)]],
        [[(1, 2)], [(2, 4)]],
    ):
        with pytest.raises(LayoutError, match="pipeline_layers"):
            megatron((4, 2), mesh, layers=layers)
    assert megatron((0, 2), mesh, layers=[[], []]).replicas == ((0, 1),)


@each_row(cases("megatron", "vocabulary"))
def test_a_rank_has_the_words_that_megatron_gives_it(case: Case) -> None:
    world = case["world"]
    ranges = [vocabulary_range(case["vocab"], rank, world) for rank in range(world)]
    assert [list(each) for each in ranges] == case["ranges"]
    layout = megatron((case["vocab"],), Mesh((world,), ("tp",)), "vocabulary")
    assert [
        (region.offset[0], region.stop[0])
        for rank in range(world)
        for region in layout.regions(rank)
    ] == ranges


@each_row(cases("megatron", "vocabulary", refused=True))
def test_a_vocabulary_that_does_not_divide_is_refused(case: Case) -> None:
    with pytest.raises(LayoutError, match="padded_vocabulary"):
        vocabulary_range(case["vocab"], 0, case["world"])
    with pytest.raises(LayoutError, match="padded_vocabulary"):
        megatron((case["vocab"], 4), Mesh((case["world"],), ("tp",)), "vocabulary")


def test_axes_that_are_left_out_have_one_device() -> None:
    assert megatron((2, 4), Mesh((2,), ("dp",)), "column", layers=True, stage=0).replicas == (
        (0, 1),
    )


@pytest.mark.parametrize(
    ("shape", "mesh", "arguments", "error"),
    [
        ((4, 4), Mesh((2,), ("model",)), {}, ArgumentError),
        ((4, 4), Mesh((2,)), {}, ArgumentError),
        ((4, 4), Mesh((2,), ("tp",)), {"parallel": "col"}, ArgumentError),
        ((4, 4), Mesh((2,), ("tp",)), {"parallel": "row", "gated": True}, ArgumentError),
        ((4, 4), Mesh((2,), ("tp",)), {"gated": True}, ArgumentError),
        ((4, 3), Mesh((2,), ("tp",)), {"parallel": "row"}, LayoutError),
        ((6, 4), Mesh((2,), ("tp",)), {"parallel": "column", "gated": True}, LayoutError),
        ((3, 4), Mesh((2,), ("pp",)), {"layers": True}, LayoutError),
        ((3, 4), Mesh((2,), ("ep",)), {"experts": True}, LayoutError),
        ((4,), Mesh((2,), ("tp",)), {"parallel": "row"}, OutOfRange),
        ((4,), Mesh((2,), ("tp",)), {"parallel": "column", "layers": True}, OutOfRange),
        ((4,), Mesh((2,), ("ep",)), {"experts": True, "layers": True}, OutOfRange),
        ((4,), Mesh((2,), ("pp",)), {"stage": 2}, OutOfRange),
        ((4,), Mesh((2,), ("pp",)), {"stage": -3}, OutOfRange),
        ((4,), Mesh((2,), ("tp",)), {"stage": 1}, OutOfRange),
    ],
)
def test_bad_arguments_are_refused(
    shape: Any, mesh: Mesh, arguments: Any, error: type[ArgumentError]
) -> None:
    with pytest.raises(error) as caught:
        megatron(shape, mesh, **arguments)
    assert caught.value.remedy


def test_bad_numbers_are_refused() -> None:
    for arguments in ((-1, 1), (1, 0), (1, 1, 0)):
        with pytest.raises(ArgumentError):
            padded_vocabulary(*arguments)
    for rank in (-1, 2):
        with pytest.raises(OutOfRange):
            vocabulary_range(4, rank, 2)
    with pytest.raises(LayoutError):
        vocabulary_range(4, 0, 0)
    with pytest.raises(ArgumentError):
        from_rank_offsets((3,), prepend_axis_num=-1)
    with pytest.raises(ArgumentError):
        from_rank_offsets((3,), (0, 1))  # type: ignore[arg-type]  # the subject of the test
