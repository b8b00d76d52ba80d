from tools import house, reference


def test_a_table_escapes_what_would_break_it():
    assert reference.table(("a", "b"), [("x|y", "two\nlines")]) == "| a | b |\n| --- | --- |\n| x\\|y | two lines |\n"


def test_the_tree_has_a_line_for_every_file_after_its_package(tmp_path):
    kernels = tmp_path / "minnow" / "kernels"
    (kernels / "norm").mkdir(parents=True)
    for path, text in {
        "minnow/__init__.py": '"""serves models"""\n',
        "minnow/llm.py": '"""LLM: the door"""\n',
        "minnow/kernels/__init__.py": '"""operations"""\n',
        "minnow/kernels/registry.py": '"""find them"""\n',
        "minnow/kernels/norm/__init__.py": '"""a norm"""\n',
        "minnow/kernels/norm/cpu.cpp": "// one row at a time\n",
    }.items():
        (tmp_path / path).write_text(text)
    lines = reference.tree(tmp_path).split("```\n")[1].splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [
        ["minnow/", "serves models"],
        ["llm.py", "LLM: the door"],
        ["kernels/", "operations"],
        ["registry.py", "find them"],
        ["norm/", "a norm"],
        ["cpu.cpp", "one row at a time"],
    ]
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 2, 2, 4, 4, 6]


def test_every_operation_variable_and_command_is_on_a_page():
    pages = reference.pages()
    for name in ("norm", "linear"):
        assert f"## {name}\n" in pages["operations.md"]
    assert "`MINNOW_ISA`" in pages["environment.md"]
    assert "`--block-size`" in pages["flags.md"]
    assert "--pipeline-parallel-size" in pages["vllm.md"]
    assert "| `vllm:request_success_total` |" in pages["metrics.md"]
    assert all(text.isascii() for text in pages.values())
    written_by_others = {"glossary.md", "planner.md", "eval.md"}  # by hand, and by `make eval`
    there = {path.name for path in (house.ROOT / "docs" / "reference").glob("*.md")}
    assert set(pages) == there - written_by_others
