"""The recorded models of Megatron, asked again of megatron-core itself, rank by rank."""

import json

import pytest

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
