from smcoll import algorithms as algorithms
from smcoll import config as config
from smcoll import errors as errors
from smcoll import segment as segment
from smcoll import topology as topology
from smcoll.comm.comm import Cartcomm as Cartcomm
from smcoll.comm.comm import Comm as Comm
from smcoll.comm.comm import Distgraphcomm as Distgraphcomm
from smcoll.comm.comm import Graphcomm as Graphcomm
from smcoll.comm.comm import Intercomm as Intercomm
from smcoll.comm.comm import wrap as wrap
from smcoll.config import Config as Config
from smcoll.errors import Error as Error
from smcoll.errors import MismatchError as MismatchError
from smcoll.errors import PeerError as PeerError
from smcoll.errors import SegmentError as SegmentError
from smcoll.errors import TopologyError as TopologyError
from smcoll.errors import TruncationError as TruncationError
from smcoll.errors import WaitTimeout as WaitTimeout
from smcoll.interpose.installation import install as install
from smcoll.interpose.installation import uninstall as uninstall
from smcoll.memory.heap_arrays import array as array
from smcoll.memory.heap_arrays import empty as empty
from smcoll.memory.heap_arrays import empty_like as empty_like
from smcoll.memory.heap_arrays import is_shared as is_shared
from smcoll.memory.heap_arrays import zeros as zeros

__version__: str

# A PyCapsule: the functions of smcoll.h.
c_api: object

def get_include() -> str: ...
