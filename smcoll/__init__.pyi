from . import algos as algos
from . import config as config
from . import errors as errors
from . import kernels as kernels
from . import launch as launch
from . import measure as measure
from . import segment as segment
from . import topology as topology
from . import trees as trees
from .comm import Cartcomm as Cartcomm
from .comm import Comm as Comm
from .comm import Distgraphcomm as Distgraphcomm
from .comm import Graphcomm as Graphcomm
from .comm import Intercomm as Intercomm
from .comm import wrap as wrap
from .config import Config as Config
from .errors import Error as Error
from .errors import MismatchError as MismatchError
from .errors import PeerError as PeerError
from .errors import SegmentError as SegmentError
from .errors import TopologyError as TopologyError
from .errors import WaitTimeout as WaitTimeout
from .heap_arrays import array as array
from .heap_arrays import empty as empty
from .heap_arrays import empty_like as empty_like
from .heap_arrays import is_shared as is_shared
from .heap_arrays import zeros as zeros
from .installation import install as install
from .installation import uninstall as uninstall

__version__: str

def get_include() -> str: ...
