"""Clusters shared by the tests of a session, and the audit after every test that used one."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cluster as c  # noqa: E402

SMALL = {"succ": c.MODELS / "succ", "witness": c.MODELS / "witness",
         "stories260K": c.MODELS / "stories260K", "prose-1m-draft": c.MODELS / "prose-1m-draft"}
# Small chunks, so that ordinary prompts need several.
ARGS = ["--kv-memory", "256MiB", "--max-tokens-per-step", "96", "--threads", "2"]


def all_models():
    models = dict(SMALL)
    if (c.SHARED / "models/prose-22m").exists():
        models["prose-22m"] = c.SHARED / "models/prose-22m"
    return models


@pytest.fixture(scope="session")
def _clusters():
    made = {}
    yield made
    for cluster in made.values():
        cluster.close()


def _get(made, mode):
    if mode not in made:
        made[mode] = c.Cluster(all_models(), mode=mode, worker_args=ARGS)
    return made[mode]


@pytest.fixture(params=["split", "serve", "serve-split"])
def any_cluster(request, _clusters):
    """Each way to run Baton in turn: three processes over tcp, colocated, split over local."""
    cluster = _get(_clusters, request.param)
    yield cluster
    cluster.audit()


@pytest.fixture
def split(_clusters):
    cluster = _get(_clusters, "split")
    yield cluster
    cluster.audit()


@pytest.fixture
def colocated(_clusters):
    cluster = _get(_clusters, "serve")
    yield cluster
    cluster.audit()


@pytest.fixture
def fresh():
    """A factory for clusters of a test's own; closed at its end."""
    made = []

    def make(models=None, **kwargs):
        cluster = c.Cluster(models or {"succ": SMALL["succ"]}, **kwargs)
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        cluster.close()
