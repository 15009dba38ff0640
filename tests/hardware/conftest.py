"""``pytest tests/hardware --gpu``: every case on the GPU and in the emulator, all at once, before the first test reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gpu",
        action="store_true",
        default=False,
        help="run the hardware cases on the GPU (sm_90a) of this machine",
    )
    parser.addoption("--hardware-out", default=None, help="folder for the record and the GPU's bytes")


def why_not(config: pytest.Config) -> str:
    """Empty where the GPU can run the cases, else the reason."""
    if not config.getoption("--gpu", default=False):
        return "runs with --gpu on a machine with an H100 or H200"
    try:
        query = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "there is no NVIDIA GPU (nvidia-smi does not answer)"
    name, capability = (x.strip() for x in query.stdout.splitlines()[0].split(","))
    if capability != "9.0":
        return f"the cases are for sm_90a, and this is {name} of compute capability {capability}"
    return ""


@pytest.fixture(scope="session")
def gpu_records(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """All records by case id; one run of all cases in parallel processes."""
    reason = why_not(request.config)
    if reason:
        pytest.skip(reason)
    out = Path(request.config.getoption("--hardware-out") or tmp_path_factory.mktemp("hardware"))
    env = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join(
            [str(HERE.parent), str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]
        ),
    )
    subprocess.run(
        [sys.executable, "-m", "hardware.run", "--gpu", "--out", str(out)],
        check=True,
        env=env,
        stdout=subprocess.DEVNULL,
    )
    return {r["id"]: r for r in json.loads((out / "record.json").read_text())["cases"]}
