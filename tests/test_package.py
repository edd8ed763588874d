"""The package as a whole: its layers, what importing it costs and pulls in, and the environment it is tested in."""

import ast
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import burnish

SOURCE = Path(burnish.__file__).parent

# lowest first; a module imports from lower entries only, the entries of one tuple in any order that has no cycle
LAYERS = [
    ("_checks", "errors", "evaluation"),
    ("noise", "likelihoods", "convergence", "integrals", "herding"),
    ("heads",),
    ("scales", "layer_scales"),
    ("bijections",),
    ("linear_bijections",),
    ("batches", "encoding", "storage", "progress", "input_form", "prediction"),
    ("posteriors", "features"),
    ("flat_network", "posterior_files"),
    ("derivatives",),
    ("output_gaussian",),
    ("target",),
    ("inference",),
    ("predictive", "metrics", "diagnostics", "drift", "evidence"),
    ("held_out", "abstention", "sample_selection"),
    ("exporting",),
    ("verdict",),
    ("ladder",),
    ("bayesian_network", "problem"),
    ("refine",),
    ("studies",),
    ("report",),
    ("cli",),
    ("__main__", "__init__"),
]


def imported_modules(path: Path) -> set[str]:
    """Names below `burnish` that a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "burnish":
            parts = node.module.split(".")[1:]
            names |= {parts[0]} if parts else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("burnish.")}
    return names


def test_imports_go_downward():
    level = {name: number for number, names in enumerate(LAYERS) for name in names}
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for name in imported_modules(path):
            assert level[name] < level[room] or name == room or {name, room} <= set(LAYERS[level[room]]), (
                f"{path.name} imports {name}, which is not below it"
            )


def test_every_export_exists_and_is_listed_once():
    assert len(set(burnish.__all__)) == len(burnish.__all__)
    for name in burnish.__all__:
        assert getattr(burnish, name) is not None


def test_importing_is_quick_and_pulls_in_no_tools():
    """Less than a second beyond torch; no plotting, command line, statistics or test library."""
    code = (
        "import time, sys, json, torch\n"
        "start = time.perf_counter(); import burnish; seconds = time.perf_counter() - start\n"
        "print(json.dumps([seconds, sorted({name.split('.')[0] for name in sys.modules})]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, modules = json.loads(done.stdout)
    assert seconds < 1.0
    unwanted = {"matplotlib", "typer", "rich", "pytest", "hypothesis", "sklearn", "pandas", "arviz_stats", "pyro", "PIL"}
    assert not unwanted & set(modules)


def test_no_cuda_package_and_no_torchvision_came_along():
    names = {distribution.metadata["Name"].lower() for distribution in importlib.metadata.distributions()}
    heavy = {name for name in names if name.startswith(("nvidia-", "triton")) or name in ("torchvision", "timm", "jaxlib")}
    assert not heavy, f"{sorted(heavy)} in the environment: install through constraints.txt, with a CPU build of torch"


def test_the_version_is_that_of_the_distribution():
    assert burnish.__version__ == importlib.metadata.version("burnish")
