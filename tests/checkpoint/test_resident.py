import errno
import mmap

import torch

from minnow.checkpoint.load import open_weights
from minnow.checkpoint.resident import ResidentWeights
from minnow.formats.quantized import Quantized, decode, encode
from tests.tiny import write_tiny


def test_copies_equal_their_sources_and_share_nothing_with_them():
    weights = [torch.randn(3, 5), torch.randn(7).bfloat16(), encode("int4", torch.randn(9, 64)), torch.empty(0, 4)]
    parts = [part for w in weights for part in ([w.codes, w.scales, w.minimums] if isinstance(w, Quantized) else [w])]
    resident = ResidentWeights(sum(p.numel() * p.element_size() for p in parts), len(parts))
    copies = [resident.copy(weight) for weight in weights]
    for copy, weight in zip(copies, weights, strict=True):
        assert torch.equal(decode(copy), decode(weight))
    assert {c.data_ptr() % 64 for c in (copies[0], copies[1], copies[2].codes, copies[2].minimums)} == {0}
    before = decode(copies[2]).clone()
    weights[2].codes.zero_()
    assert torch.equal(decode(copies[2]), before)


def test_an_eager_source_hands_out_the_same_weights(tmp_path):
    config = write_tiny(tmp_path, format="m3.1", max_shard_bytes=40_000)
    lazy, eager = open_weights(tmp_path, config), open_weights(tmp_path, config, is_eager=True)
    for name in lazy.names:
        a, b = lazy.take(name), eager.take(name)
        assert decode(a).dtype == decode(b).dtype and torch.equal(decode(a), decode(b))
        if isinstance(a, Quantized):
            assert a.global_scale is None or torch.equal(a.global_scale, b.global_scale)


def test_a_system_without_huge_pages_gets_small_ones(monkeypatch):
    class Small(mmap.mmap):
        def madvise(self, *_):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("minnow.checkpoint.resident.mmap.mmap", Small)
    weight = torch.randn(3, 5)
    assert torch.equal(ResidentWeights(60, 1).copy(weight), weight)
