import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from minnow.core.errors import ConfigError
from minnow.formats.quantized import decode, encode
from minnow.kernels import native
from minnow.kernels.compare import compare
from minnow.kernels.linear import cpu as linear_cpu
from minnow.kernels.norm import OP, cpu, inputs, reference

KERNELS = Path(native.__file__).parent
BUILT = ("portable", "avx2", "avx512")


def _flags() -> dict[str, list[str]]:
    lines = (KERNELS / "native" / "flags.txt").read_text().splitlines()
    return {words[0]: words[1:] for words in map(shlex.split, lines) if words and words[0].isalpha()}


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch):
    def choose(isa: str) -> None:
        monkeypatch.setenv("MINNOW_ISA", isa)
        native.instruction_set.cache_clear()
        native.function.cache_clear()

    yield choose
    monkeypatch.undo()
    native.instruction_set.cache_clear()
    native.function.cache_clear()


def test_the_best_instruction_set_is_taken_and_logged(force, capsys):
    force("")
    assert native.instruction_set() == native.usable_instruction_sets()[-1]
    assert f"isa={native.instruction_set()}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("supported", "best"), [(BUILT, "avx512"), (("portable", "avx2"), "avx2"), (("portable",), "portable")]
)
def test_a_lesser_processor_gets_the_best_it_can_run(supported, best):
    assert native.choose("", BUILT, supported) == best


def test_an_instruction_set_that_cannot_run_is_refused():
    with pytest.raises(ConfigError, match=r"MINNOW_ISA=avx512: this processor .* portable, avx2, or empty"):
        native.choose("avx512", BUILT, ("portable", "avx2"))
    with pytest.raises(ConfigError, match=r"MINNOW_ISA=sse9: the library has no such build; it can be portable"):
        native.choose("sse9", BUILT, BUILT)


def test_a_forced_unknown_instruction_set_stops_the_program_with_a_sentence():
    code = "from minnow.kernels import native; native.instruction_set()"
    done = subprocess.run([sys.executable, "-c", code], env={"MINNOW_ISA": "sse9"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ConfigError: MINNOW_ISA=sse9" in done.stderr


@pytest.mark.parametrize("isa", native.usable_instruction_sets())
@pytest.mark.parametrize("case", OP.cases, ids=str)
def test_every_instruction_set_agrees_with_the_reference(isa, case, force):
    force(isa)
    arguments = inputs.make(torch.device("cpu"), **case)
    assert compare(OP, cpu.norm(**arguments), reference.norm(**arguments)) == []
    assert native.instruction_set() == isa


@pytest.mark.parametrize("isa", native.usable_instruction_sets())
@pytest.mark.parametrize("name", ["int4", "int8"])
def test_linear_is_exact_but_for_the_order_of_sums(isa, name, force):
    """Rows alone and together are the same bit by bit; subnormal and negative scales are read right."""
    force(isa)
    generator = torch.Generator().manual_seed(3)
    weight = encode(name, torch.randn(37, 96, generator=generator))
    weight.scales[0, 0], weight.scales[1, 1], weight.scales[2, 2] = 2.0**-24, -0.5, 3 * 2.0**-20
    x = torch.randn(300, 96, generator=generator)
    seen = linear_cpu.linear(x, (weight, weight))
    values = decode(weight).double()
    exact, bound = x.double() @ values.T, 96 * 2.0**-24 * (x.double().abs() @ values.abs().T)
    for half in seen.chunk(2, dim=1):
        assert bool(((half - exact).abs() <= bound).all())
    for start, end in ((0, 1), (0, 2), (5, 8), (1, 17), (3, 20), (100, 300)):
        assert torch.equal(linear_cpu.linear(x[start:end], (weight, weight)), seen[start:end])


def test_linear_refuses_rows_of_another_width():
    weight = encode("int8", torch.randn(4, 96))
    for width in (64, 128):
        with pytest.raises(AssertionError, match=f"a weight of width 96 meets rows of {width}"):
            linear_cpu.linear(torch.randn(2, width), (weight,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm", [reference.norm, cpu.norm])
def test_a_zero_weight_of_the_gemma_form_is_the_identity_scale(norm, dtype):
    x = torch.tensor([[3.0, -4.0, 0.0, 0.0], [1.0, 1.0, -1.0, 1.0]], dtype=dtype)
    y = norm(x, torch.zeros(4, dtype=dtype), 0.0, 1.0)
    assert torch.allclose(y.float(), torch.tensor([[1.2, -1.6, 0, 0], [1, 1, -1, 1]]), rtol=4e-3)
    assert torch.equal(norm(x, torch.zeros(4, dtype=dtype), 0.0, 0.0), torch.zeros_like(x))


@pytest.mark.parametrize("isa", native.usable_instruction_sets())
def test_bf16_results_are_rounded_to_nearest_even(isa, force):
    # a row of ones has scale 1, so y is the weight, rounded from f32
    force(isa)
    low, high = 1.0, 1.0078125  # neighbours in bf16
    w = torch.tensor([low, (low + high) / 2, (low + high) / 2 + 2**-20, high + (high - low) / 2, -3.0e-39, 3.4e38])
    y = cpu.norm(torch.ones(1, 6, dtype=torch.bfloat16), w, 0.0, 0.0)
    assert torch.equal(y[0], w.to(torch.bfloat16))


@pytest.mark.parametrize("isa", native.usable_instruction_sets())
def test_nan_stays_nan_and_overflow_is_as_in_the_reference(isa, force):
    force(isa)
    x = torch.ones(4, 40)
    x[0, 3], x[1, 39], x[2, 0] = float("nan"), float("inf"), 3e38
    for rows in (x, x.bfloat16()):
        seen, expected = cpu.norm(rows, torch.ones(40), 1e-6, 0.0), reference.norm(rows, torch.ones(40), 1e-6, 0.0)
        assert compare(OP, seen, expected) == []


def test_columns_that_lie_apart_are_read_right():
    x = torch.arange(24.0).reshape(6, 4).T
    assert compare(OP, cpu.norm(x, torch.ones(6), 1e-6, 0.0), reference.norm(x, torch.ones(6), 1e-6, 0.0)) == []


def test_an_element_type_that_kernels_lack_is_named():
    with pytest.raises(TypeError, match=r"not torch\.float16"):
        native.dtype_code(torch.float16)


def test_a_missing_library_says_how_to_build_it(tmp_path):
    with pytest.raises(ConfigError, match=r"missing \(no .*libminnow.so\): run `make setup`"):
        native.open_library([tmp_path])


def test_a_broken_library_says_how_to_build_it(tmp_path):
    (tmp_path / "_native").mkdir()
    (tmp_path / "_native" / "libminnow.so").write_bytes(b"not a library")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        native.open_library([tmp_path])


@pytest.mark.parametrize(("version", "named"), [("9.9.9", "9.9.9"), (None, "an older version")])
def test_a_library_of_another_version_says_how_to_build_it(tmp_path, version, named):
    (tmp_path / "_native").mkdir()
    path = tmp_path / "_native" / "libminnow.so"
    code = f'const char* minnow_version(void) {{ return "{version}"; }}' if version else "int minnow_other;"
    subprocess.run(["cc", "-shared", "-x", "c", "-", "-o", path], input=code, text=True, check=True)
    with pytest.raises(ConfigError, match=rf"libminnow.so was built for Minnow {named}, this is .*: run `make setup`"):
        native.open_library([tmp_path])


def test_a_function_that_the_library_lacks_says_that_it_is_old():
    with pytest.raises(ConfigError, match="has no minnow_nonsense_portable: it is out of date; run `make setup`"):
        native.function("nonsense", "p", "portable")


def test_the_library_exports_nothing_but_minnow_names():
    lines = _nm("-D", "--defined-only", native.library_path())
    names = {line.split()[-1] for line in lines}
    assert names >= {"minnow_built_isas", "minnow_supported_isas", "minnow_norm_portable"}
    assert [n for n in names if not n.startswith("minnow_")] == []


def test_no_two_builds_of_a_kernel_share_a_symbol(objects):
    """Else the linker would keep one copy, perhaps with instructions that this processor lacks."""
    defined_by_isa = {}
    for isa in _isas_of_this_machine():
        defined = [line.split() for source in _sources() for line in _nm("--defined-only", objects[source, isa])]
        defined_by_isa[isa] = {words[-1] for words in defined if words[-2] in "TWVuBDR"}
        assert f"minnow_norm_{isa}" in defined_by_isa[isa]
    shared = [a & b for x, a in defined_by_isa.items() for y, b in defined_by_isa.items() if x < y]
    assert [names for names in shared if names] == []


def test_operations_share_only_what_headers_define(objects):
    """Two files that each define an inline function of one name would get one body, in silence."""
    headers = "".join(path.read_text() for path in (KERNELS / "native").glob("*.h"))
    for isa in _isas_of_this_machine():
        seen: set[str] = set()
        for source in _sources():
            lines = _nm("--defined-only", "--demangle", objects[source, isa])
            weak = {words[2] for words in (line.split(maxsplit=2) for line in lines) if words[1] in "WVu"}
            for name in weak & seen:
                assert re.search(rf"\b{re.escape(_bare_name(name))}\b", headers), f"{name} is in two cpu.cpp"
            seen |= weak


def test_the_portable_build_has_no_wide_registers(objects):
    for isa, is_wide in ((i, i != "portable") for i in _isas_of_this_machine()):
        text = "".join(_run("objdump", "-d", objects[source, isa]) for source in _sources())
        assert bool(re.search("%[yz]mm", text)) == is_wide


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """Every cpu.cpp compiled for every instruction set, barely optimised: it is names that are looked at."""
    folder = tmp_path_factory.mktemp("objects")
    keys = [(source, isa) for source in _sources() for isa in _isas_of_this_machine()]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(keys, pool.map(lambda key: _object(*key, folder), keys), strict=True))


def _bare_name(demangled: str) -> str:
    """multiply, of "void avx2::multiply<float>(float const*)"."""
    return re.split(r"[<(]", demangled)[0].split("::")[-1]


def _isas_of_this_machine() -> list[str]:
    return [name for name in _flags() if name in native.built_instruction_sets()]


def _sources() -> list[Path]:
    return sorted(KERNELS.glob("*/cpu.cpp"))


def _object(source: Path, isa: str, folder: Path) -> Path:
    flags, path = _flags(), folder / f"{source.parent.name}_{isa}.o"
    subprocess.run(
        ["c++", "-std=c++17", *flags["all"], *flags[isa], "-O1", f"-DMINNOW_ISA={isa}", "-c", source, "-o", path],
        check=True,
    )
    return path


def _nm(*arguments: object) -> list[str]:
    return [line for line in _run("nm", *arguments).splitlines() if line.strip()]


def _run(*words: object) -> str:
    return subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True).stdout
