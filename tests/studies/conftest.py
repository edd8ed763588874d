"""One folder of networks and posteriors for all tests of image studies: what one test has fitted, others find."""

import pytest
from image_cases import make_methods


@pytest.fixture(scope="session")
def image_work(tmp_path_factory):
    """A folder that only grows."""
    return tmp_path_factory.mktemp("image-work")


@pytest.fixture(scope="session")
def paper(image_work):
    """Methods of one network under the paper's protocol."""
    return make_methods("paper", image_work)


@pytest.fixture(scope="session")
def ours(image_work):
    """Methods of one network under our protocol."""
    return make_methods("ours", image_work)
