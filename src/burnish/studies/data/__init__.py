"""Public sets of images and texts: where they come from, the ways they may lie on disk, and reading them.

`load_images` and `load_documents` give one split, from a folder, from BURNISH_DATA, or from its home with checksums.
`DATASETS` says what there is, and `describe` which form of a set is read, for records: not every copy is the whole of it.
"""

from burnish.studies.data.catalogue import DATASETS, IMAGES, TEXTS
from burnish.studies.data.documents import Documents
from burnish.studies.data.images import Images
from burnish.studies.data.loading import describe, load_documents, load_images
from burnish.studies.data.tokens import Tokens

__all__ = ["DATASETS", "IMAGES", "TEXTS", "Documents", "Images", "Tokens", "describe", "load_documents", "load_images"]
