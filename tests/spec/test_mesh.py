"""The mesh: places and groups, and what a spec leaves open."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.spec.mesh import AXES, Mesh, MeshSpec, settle_mesh
from drumline.spec.parts import ClashError

sizes = st.integers(1, 4)


def test_groups_of_the_picture():
    mesh = Mesh(data=2, pipeline=2, tensor=2)
    assert list(mesh.groups("tensor")) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert list(mesh.groups("pipeline")) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert list(mesh.groups("data")) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.place(6) == (1, 1, 0)
    assert mesh.group_of("pipeline", 7) == [5, 7]
    assert str(mesh) == "data(2) × pipeline(2) × tensor(2)"


@given(sizes, sizes, sizes)
def test_each_rank_is_in_one_group_of_each_axis(data, pipeline, tensor):
    mesh = Mesh(data=data, pipeline=pipeline, tensor=tensor)
    assert [mesh.rank(*mesh.place(rank)) for rank in range(mesh.size)] == list(range(mesh.size))
    for axis, size in zip(AXES, mesh.shape, strict=True):
        groups = list(mesh.groups(axis))
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
        assert {len(group) for group in groups} == {size}
        for group in groups:
            places = [mesh.place(rank) for rank in group]
            assert [place[AXES.index(axis)] for place in places] == list(range(size))


@pytest.mark.parametrize(
    ("said", "kind", "workers", "shape"),
    [
        ({}, "ddp", 3, (3, 1, 1)),
        ({}, "pipeline", 3, (1, 3, 1)),
        ({}, "tensor", 2, (1, 1, 2)),
        ({}, "rpc", 2, (1, 2, 1)),
        ({"pipeline": 2}, "ring", 4, (2, 2, 1)),
        ({"pipeline": 2, "tensor": 2}, "ddp", 8, (2, 2, 2)),
        ({"data": 2}, "pipeline", 4, (2, 2, 1)),
        ({"tensor": 2}, "pipeline", 4, (1, 2, 2)),
    ],
)
def test_what_is_not_said_follows(said, kind, workers, shape):
    assert settle_mesh(MeshSpec(**said), kind, workers=workers, nodes=1).shape == shape


@pytest.mark.parametrize(
    ("said", "kind", "workers", "nodes", "message"),
    [
        (
            {"data": 4, "pipeline": 2},
            *("ddp", 6, 1),
            "world size mismatch: data(4) × pipeline(2) × tensor(1) = 8 ranks, but 6 workers = 6 "
            "will start; set workers=8 or mesh.data=3",
        ),
        (
            {"pipeline": 2},
            *("ddp", 3, 1),
            "world size mismatch: data(1) × pipeline(2) × tensor(1) = 2 ranks, but 3 workers = 3 "
            "will start; set workers=2",
        ),
        (
            {"tensor": 3},
            *("ddp", 2, 2),
            "world size mismatch: data(1) × pipeline(1) × tensor(3) = 3 ranks, but 2 workers on "
            "each of 2 nodes = 4 will start; set nodes=1 workers=3",
        ),
    ],
)
def test_other_numbers_are_refused_with_a_way_out(said, kind, workers, nodes, message):
    with pytest.raises(ClashError) as caught:
        settle_mesh(MeshSpec(**said), kind, workers=workers, nodes=nodes)
    assert str(caught.value) == message
