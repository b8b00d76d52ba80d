"""the mesh of one device, and shares"""

import dataclasses

from minnow.parallel.mesh import Mesh


def test_a_single_device_holds_everything() -> None:
    mesh = Mesh.single()
    assert [mesh.ranks_of(axis) for axis in ("tp", "dp", "ep", "cp")] == [1, 1, 1, 1]
    assert mesh.share(4, "tp") == 4


def test_heads_are_shared_and_then_copied() -> None:
    mesh = dataclasses.replace(Mesh.single(), num_ranks=(("tp", 8), ("dp", 1), ("ep", 1), ("cp", 1)))
    assert mesh.share(64, "tp") == 8
    assert mesh.share(4, "tp") == 1
