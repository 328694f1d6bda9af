"""The laws of the source tree: who imports whom, what an import changes, how files are named."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "fuzzytorch"
NATIVE = ROOT / "native"

LAYERS = (
    {"rounding", "stream", "program", "digits", "text", "_prism"},
    {"backends"},
    {
        "table",
        "ops",
        "lookup",
        "records",
        "gaps",
        "guards",
        "notices",
        "active",
        "selectors",
        "provenance",
    },
    {"fuzzy", "scope", "account"},
    {"ensemble", "locate", "coverage", "nan", "selftest"},
    {"cli", "report"},
    {"__init__"},
)
"""From the bottom up: a module imports from its own layer or from one below it."""

VAGUE = {"utils", "util", "helpers", "helper", "misc", "common", "base", "core", "manager"}

MODULES = sorted(PACKAGE.rglob("*.py"))
SOURCES = sorted(p for p in NATIVE.rglob("*") if p.suffix in (".h", ".hpp", ".cpp", ".cc", ".inc"))


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 10
    assert len(SOURCES) > 5


def dotted(path: Path) -> str:
    """``digits.normal`` for ``src/fuzzytorch/digits/normal.py``; a package is its ``__init__``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Absolute names of all that a file imports at run time, wherever the import stands."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively: write the full name."
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        pending += ast.iter_child_nodes(node)


def imported_modules(path: Path) -> set[str]:
    """Dotted names of the modules of this package that a file imports."""
    known = {dotted(p) for p in MODULES} | {"_prism"}
    found = set()
    for name in imports(path):
        head, _, rest = name.partition(".")
        if head != "fuzzytorch":
            continue
        while rest and rest not in known:
            rest = rest.rpartition(".")[0]
        found.add(rest or "__init__")
    return found - {dotted(path)}


def layer(module: str) -> int:
    top = module.partition(".")[0]
    for number, names in enumerate(LAYERS):
        if top in names:
            return number
    pytest.fail(f"{top} stands in no layer of {Path(__file__).name}: say where it belongs.")


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_a_module_imports_only_from_its_layer_and_below(path: Path) -> None:
    above = {name for name in imported_modules(path) if layer(name) > layer(dotted(path))}
    assert not above


def test_no_module_imports_itself_through_others() -> None:
    graph = {dotted(path): imported_modules(path) for path in MODULES}
    finished: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail[trail.index(module) :], module))
        if module not in finished:
            for name in sorted(graph.get(module, ())):
                visit(name, (*trail, module))
            finished.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("path", sorted((PACKAGE / "digits").glob("*.py")), ids=dotted)
def test_digits_knows_nothing_of_the_dispatch_or_of_the_rest(path: Path) -> None:
    assert all(name.partition(".")[0] == "digits" for name in imported_modules(path))
    assert not any("dispatch" in name for name in imports(path))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_native_code_includes_nothing_of_torch(path: Path) -> None:
    included = re.findall(r"#\s*include\s*[<\"]([^>\"]+)", path.read_text(encoding="utf-8"))
    assert not [name for name in included if re.match(r"(torch|ATen|c10|caffe2)\b", name)]


def test_one_native_file_alone_knows_python() -> None:
    pattern = re.compile(r"#\s*include\s*[<\"](Python\.h|nanobind|pybind11)")
    binding = [p.name for p in SOURCES if pattern.search(p.read_text(encoding="utf-8"))]
    assert len(binding) == 1, binding


SNAPSHOT = """
import json, sys, torch, warnings
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes
from torch.overrides import _get_current_function_mode_stack as functions

def state():
    nn = torch.nn
    places = (torch, torch.Tensor, nn.functional, nn.Module, torch.autograd, torch.optim)
    ids = [{k: id(v) for k, v in vars(p).items() if k != "__warningregistry__"} for p in places]
    return {
        "attributes": ids,
        "dtype": str(torch.get_default_dtype()), "device": str(torch.get_default_device()),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "grad": [torch.is_grad_enabled(), torch.is_anomaly_enabled()],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "mkldnn": torch.backends.mkldnn.enabled, "flush": torch.tensor([1e-40]).mul(1).item(),
        "generator": torch.get_rng_state().tolist(), "modes": len(modes()) + len(functions()),
        "filters": len(warnings.filters),
    }

before, loaded = state(), set(sys.modules)
import fuzzytorch
after = state()
changed = [k for k in before if k != "attributes" and before[k] != after[k]]
replaced = [
    name
    for old, new in zip(before["attributes"], after["attributes"])
    for name in old if new.get(name) != old[name]
]
added = sorted({m.partition(".")[0] for m in set(sys.modules) - loaded})
print(json.dumps({"changed": changed, "replaced": replaced, "added": added}))
"""


@pytest.fixture(scope="module")
def effects_of_import() -> dict[str, list[str]]:
    command = [sys.executable, "-W", "error", "-c", SNAPSHOT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_the_package_changes_no_torch_state(
    effects_of_import: dict[str, list[str]],
) -> None:
    assert effects_of_import["changed"] == []
    assert effects_of_import["replaced"] == []


def test_importing_the_package_imports_no_plots_no_scipy_and_no_terminal(
    effects_of_import: dict[str, list[str]],
) -> None:
    assert "fuzzytorch" in effects_of_import["added"]
    heavy = {"scipy", "matplotlib", "rich", "typer", "click", "pandas", "sklearn", "mlxtend"}
    tests = {"pytest", "hypothesis", "significantdigits", "expecttest"}
    assert not (heavy | tests | {"triton", "torchvision"}) & set(effects_of_import["added"])


def project_files() -> list[Path]:
    """Every text file that belongs to the project."""
    folders = ("src", "native", "tests", "benchmarks", "examples", "docs", ".ci")
    files = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.is_file()]
    files += [p for p in ROOT.iterdir() if p.is_file() and p.name != ".git"]
    binary = {".pyc", ".so", ".npz", ".png"}
    return sorted(p for p in files if p.suffix not in binary and "__pycache__" not in p.parts)


def test_no_file_and_no_folder_has_a_vague_name() -> None:
    parts = {
        part.partition(".")[0].strip("_")
        for p in project_files()
        for part in p.relative_to(ROOT).parts
    }
    assert not parts & VAGUE


def test_no_file_mentions_a_machine_or_a_registry() -> None:
    # Put together here so that this file is not its own counter-example.
    places = ["/" + name + "/" for name in ("work", "root", "home", "Users", "opt", "mnt")]
    hosts = ["pypi" + ".org", "python" + "hosted", "download." + "pytorch", "conda" + ".io"]
    pattern = re.compile("|".join(re.escape(word) for word in places + hosts))
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in project_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found
