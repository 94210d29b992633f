"""The recorded models and pipelines of Megatron, asked again of megatron-core itself, rank by rank."""

import json

import pytest

from spec_tests.helpers import megatron_pipelines
from spec_tests.helpers.layout_tables import Case, cases
from spec_tests.helpers.megatron_models import record


@pytest.mark.filterwarnings("ignore")  # It warns of accelerators that are not here.
def test_models_save_what_is_recorded_of_them() -> None:
    """On every mesh of the table, with context parallelism of one, two and three ranks."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    recorded: dict[str, list[Case]] = {}
    for case in cases("megatron", "model"):
        recorded.setdefault(json.dumps([case["mesh"], case["layout"]]), []).append(case)
    for model, rows in recorded.items():
        without_ids = [{name: row[name] for name in row if name != "id"} for row in rows]
        assert record(*json.loads(model)) == without_ids
    assert {json.loads(model)[0]["shape"][2] for model in recorded} == {1, 2, 3}


@pytest.mark.filterwarnings("ignore")  # The same.
def test_pipelines_are_built_as_is_recorded() -> None:
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    recorded = json.loads(megatron_pipelines.TABLE.read_text(encoding="utf-8"))
    assert json.loads(json.dumps(megatron_pipelines.record())) == recorded
