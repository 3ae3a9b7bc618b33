"""The names of forethought.data: written by tools/options.py."""

from .columns import Encoder as Encoder
from .columns import TableSchema as TableSchema
from .dataset import Dataset as Dataset
from .dataset import Split as Split
from .dataset import of_persons as of_persons
from .features import features_of as features_of
from .files import DataError as DataError
from .files import TableFormat as TableFormat
from .sources import load as load
from .sources import names as names
