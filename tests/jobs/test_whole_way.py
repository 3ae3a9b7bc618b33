"""Tables, examples and remedies through the command line, as a new user types them."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from forethought.cli import main

ROOT = Path(__file__).parents[2]
Outcome = tuple[int, str]


def _tables() -> dict[str, dict[str, object]]:
    place = ROOT / "tests" / "data" / "test_many_tables.py"
    spec = importlib.util.spec_from_file_location("many_tables", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    refused = {name: content for name, (content, _) in module.REFUSED.items()}
    return {"loads": dict(module.LOADS), "refused": refused}


@pytest.fixture(name="forethought")
def command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr("sys.argv", ["forethought", *map(str, arguments)])
        status = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                main()
            except SystemExit as end:
                status = int(end.code or 0)
        return status, capsys.readouterr().err

    return run


JOB = (
    '[data]\nsource = "csv:t.csv"\nlabel = "outcome"\n[budget]\nepsilon = 3.0\n'
    "[training]\nrounds = 2\nbatch = 20\n"
)


@pytest.mark.slow
def test_more_than_fifty_tables_train_or_are_one_clear_line(forethought) -> None:
    tables = _tables()
    assert sum(map(len, tables.values())) >= 50
    for kind, contents in tables.items():
        for number, (name, content) in enumerate(contents.items()):
            assert isinstance(content, str | bytes)
            Path("t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
            # Without noise there is no promise to draw, which takes a second each time.
            noise = "noise_multiplier = 0\n" if number else ""
            job = JOB.replace("epsilon = 3.0\n", "") if number else JOB
            Path("job.toml").write_text(job + noise)
            folder = Path(f"{kind}{number}")
            status, err = forethought("train", "job.toml", "--out", folder, "--quiet")
            if kind == "loads":
                assert (status, err) == (0, ""), name
                assert (folder / "statement.json").is_file()
                continue
            assert status in (1, 2) and len(err.strip().splitlines()) == 1, (name, err)
            assert "t.csv" in err and "Traceback" not in err
            assert not folder.exists(), f"{name}: something half-written was left"


@pytest.mark.slow
def test_the_examples_own_command_works_from_the_root(forethought, monkeypatch) -> None:
    head = (ROOT / "examples" / "own_model.toml").read_text().splitlines()[0]
    words = head.removeprefix("# forethought ").split()
    assert words == ["train", "examples/own_model.toml"]
    assert f"`forethought {' '.join(words)}`" in (ROOT / "examples/own_model.py").read_text()
    out = Path.cwd() / "run"
    monkeypatch.chdir(ROOT)
    status, err = forethought(*words, "--out", out, "--rounds", 2, "--quiet")
    assert (status, err) == (0, "") and (out / "statement.json").is_file()


def test_the_remedy_for_gigabytes_comes_before_the_install() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first = text.index("pip install torch --index-url https://download.pytorch.org/whl/cpu")
    assert first < text.index("pip install .") == text.index("pip install .", first)
    assert "gigabytes of CUDA packages" in text


@pytest.mark.slow
def test_classes_that_init_found_are_on_no_page(forethought) -> None:
    lines = ["age,state"] + [
        f"{20 + n / 7:.3f},{'SECRET' if n % 2 else 'well'}" for n in range(300)
    ]
    Path("t.csv").write_text("\n".join(lines) + "\n")
    assert forethought("init", "t.csv", "--label", "state", "--quiet")[0] == 0
    text = Path("job.toml").read_text()
    for measured in ("true", "false"):
        Path("job.toml").write_text(
            text.replace("columns_measured = true", f"columns_measured = {measured}")
            + "[training]\nrounds = 2\n"
        )
        assert forethought("train", "job.toml", "--out", measured, "--quiet")[0] == 0
        pages = ("statement.md", "statement.json", "statement.html", "report.html", "results.json")
        shown = [name for name in pages if "SECRET" in (Path(measured) / name).read_text()]
        assert shown == ([] if measured == "true" else ["report.html", "results.json"])
