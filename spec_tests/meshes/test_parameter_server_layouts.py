"""Parameter servers hold the parts of the div rule."""

from itertools import product
from typing import Any

import pytest

from shardvar.errors import LayoutError
from shardvar.layout import div
from shardvar.layout.meshes import parameter_servers
from shardvar.layout.meshes.layout import Mesh
from spec_tests.helpers.layout_tables import held


def test_a_server_holds_its_part_of_div() -> None:
    for rows, servers in product(range(20), range(1, 9)):
        assert held(parameter_servers((rows, 2), Mesh((servers,)))) == {
            server: [((start, 0), (stop - start, 2))] if start < stop else []
            for server, (start, stop) in enumerate(div(rows, servers))
        }


def test_an_order_of_servers_is_followed() -> None:
    layout = parameter_servers((3,), Mesh((2,), devices=(1, 0)))
    assert held(layout) == {0: [((2,), (1,))], 1: [((0,), (2,))]}


@pytest.mark.parametrize(("shape", "mesh"), [((), (2,)), ((4,), (2, 2)), ((4,), ())])
def test_what_servers_cannot_hold_is_refused(shape: Any, mesh: Any) -> None:
    with pytest.raises(LayoutError):
        parameter_servers(shape, Mesh(mesh))
