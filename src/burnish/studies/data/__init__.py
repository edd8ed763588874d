"""Public image data sets: where they come from, the ways they may lie on disk, and reading them.

`load_images` gives one split as tensors, from a folder, from BURNISH_DATA, or from its home with checksums. `DATASETS` says
what there is, and `describe` which form of a set is read, for records: not every copy of a set is the whole of it.
"""

from burnish.studies.data.catalogue import DATASETS
from burnish.studies.data.images import Images
from burnish.studies.data.loading import describe, load_images

__all__ = ["DATASETS", "Images", "describe", "load_images"]
