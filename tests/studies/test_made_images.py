"""Made images: the shapes of the real ones, the same at every call, and something to learn."""

import pytest
import torch

from burnish.studies.data import DATASETS, IMAGES
from burnish.studies.made_images import MAX_CLASSES, made_images
from burnish.studies.protocols import BENCHMARKS

USED = sorted({*IMAGES.keys() & BENCHMARKS, *(name for benchmark in BENCHMARKS.values() for name in benchmark.outside)})


@pytest.mark.parametrize("name", USED)
def test_shapes_are_those_of_the_data_set(name):
    images = made_images(name, "test")
    coloured = name in ("cifar-10", "cifar-100", "svhn", "tiny-imagenet")
    assert images.pixels.shape[1:] == ((3, 32, 32) if coloured else (1, 28, 28))
    num_classes = min(DATASETS[name].num_classes or 10, MAX_CLASSES)
    assert torch.equal(images.labels.unique(), torch.arange(num_classes))


def test_they_are_the_same_every_time_and_leave_the_global_generator_alone(untouched_rng):
    first, again = (made_images("fashion-mnist", "train") for _ in range(2))
    assert torch.equal(first.pixels, again.pixels)
    assert torch.equal(first.labels, again.labels)


def test_splits_and_data_sets_differ():
    train, test = (made_images("mnist", split) for split in ("train", "test"))
    assert not torch.equal(train.pixels[: len(test)], test.pixels)
    assert not torch.equal(test.pixels, made_images("kmnist", "test").pixels)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar-10"])
def test_classes_can_be_learned_but_for_some_wrong_labels(name):
    train, test = (made_images(name, split) for split in ("train", "test"))
    means = torch.stack([train.inputs()[train.labels == label].mean(0) for label in range(10)]).flatten(1)
    nearest = torch.cdist(test.inputs().flatten(1), means).argmin(1)
    assert 0.8 < float((nearest == test.labels).double().mean()) < 0.96
    # mirrored, as training images are by chance, a class still looks like itself
    assert torch.equal(torch.cdist(test.inputs().flip(3).flatten(1), means).argmin(1), nearest)
