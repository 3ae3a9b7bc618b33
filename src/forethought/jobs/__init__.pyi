"""The names of forethought.jobs: written by tools/options.py."""

from . import account as account
from . import audit as audit
from . import holders as holders
from . import init as init
from . import job as job
from . import load as load
from . import members as members
from . import onnx_export as onnx_export
from . import predict as predict
from . import public_proxy as public_proxy
from . import release as release
from . import train as train
