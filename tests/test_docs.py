"""The pages: their tables are those of the committed records, and the code they show runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_tables_are_those_of_the_records():
    command = [sys.executable, "benchmarks/tables.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run `make tables`"


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(python_blocks())))
def test_the_code_of_the_readme_runs(number):
    """In one namespace per block, after a small trained network and its loaders, which the blocks take for granted."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 8, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    names = {
        "network": network,
        "train_loader": DataLoader(TensorDataset(x[:200], y[:200]), batch_size=50),
        "validation_loader": DataLoader(TensorDataset(x[200:], y[200:]), batch_size=50),
        "x": x[:10],
        "embeddings": x.numpy(),
        "labels": y.numpy(),
    }
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*best at the bound.*")
        exec(compile(python_blocks()[number], f"README block {number}", "exec"), names)
