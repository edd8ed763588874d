"""The pages: their tables are those of the committed records, and the code they show runs."""

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("script", ["tables.py", "figures.py"])
def test_tables_and_figure_are_those_of_the_records(script):
    command = [sys.executable, f"benchmarks/{script}", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run `make docs`"


def python_blocks(page: str = "README.md") -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(python_blocks())))
def test_the_code_of_the_readme_runs(number, tmp_path, monkeypatch):
    """In one namespace per block, after a small trained network and its loaders, which the blocks take for granted."""
    monkeypatch.chdir(tmp_path)  # some of them save files
    run(python_blocks()[number], prepared())


def test_the_code_of_the_page_on_predictions_runs():
    """In one namespace, after a refined network."""
    names = prepared()
    run("import burnish\nbnn = burnish.refine(network, train_loader, validation=validation_loader)", names)
    names |= {
        "model": names["bnn"].model,
        "posterior": names["bnn"].posterior,
        "inputs": names["bnn"].backbone(names["x"]).detach(),
        "generator": names["burnish"].make_generator(0),
        "unlabelled_loader": names["train_loader"],
        "x_held_out": names["x"],
        "y_held_out": names["labels_of_x"],
    }
    for block in python_blocks("docs/predictives.md"):
        run(block, names)


def run(code, names):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*best at the bound.*")
        exec(compile(code, "a block of a page", "exec"), names)


def prepared():
    """A small trained network, loaders and data."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 8, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x[:200]), y[:200]).backward()
        optimizer.step()
    return {
        "network": network,
        "train_loader": DataLoader(TensorDataset(x[:200], y[:200]), batch_size=50),
        "validation_loader": DataLoader(TensorDataset(x[200:], y[200:]), batch_size=50),
        "x": x[:10],
        "labels_of_x": y[:10],
        "embeddings": x.numpy(),
        "labels": y.numpy(),
    }
