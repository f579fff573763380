"""Ways to run an MPI that are worth comparing with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from smcoll.launch.launch import INTEL_MPI, MPICH, OPEN_MPI


@dataclass(frozen=True)
class Setting:
    """Environment variables, the thread level that it needs ("": any), and whether it is another
    way than the default over several nodes only.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    thread_level: str = ""
    several_nodes: bool = False


# Beside the default those in which a node's ranks use another set of collectives.
# Open MPI: its shared-memory component, which others outrank by default.
#   Over several nodes its hierarchical collectives (HAN), which Open MPI 5 prefers by itself and
#   4 does not; and those of before, which treat all ranks alike.
# MPICH: its shared-memory collectives run below MPI_THREAD_MULTIPLE only; mpi4py asks for that.
_SETTINGS = {
    OPEN_MPI: {
        "default": Setting(), "coll_sm": Setting({"OMPI_MCA_coll_sm_priority": "100"}),
        "han": Setting({"OMPI_MCA_coll_han_priority": "100"}, several_nodes=True),
        "tuned": Setting({"OMPI_MCA_coll_han_priority": "0"}, several_nodes=True)},
    MPICH: {"default": Setting(), "serialized": Setting(thread_level="serialized")},
    INTEL_MPI: {"default": Setting()},
}

# Environment that takes from an MPI all collectives but those over its point-to-point messages.
# Open MPI: every component of coll that is not (names absent from a version are ignored); checked
#   with coll_base_verbose: tuned, basic and libnbc remain.
# MPICH: no collective of the device below (shared memory or network); the generic ones remain.
#   Below MPI_THREAD_MULTIPLE a barrier of 2 ranks then takes 7 instead of 0.5 us.
# Intel MPI: its documented switch.
_POINT_TO_POINT = {
    OPEN_MPI: {"OMPI_MCA_coll": "^sm,xhc,acoll,han,smdirect,adapt,hcoll,ucc"},
    MPICH: {"MPIR_CVAR_DEVICE_COLLECTIVES": "none"},
    INTEL_MPI: {"I_MPI_COLL_INTRANODE": "pt2pt"},
}


def settings(family: str, several_nodes: bool = False) -> dict[str, Setting]:
    """Ways to run this MPI on one node or several, by name; the first is the default."""
    return {name: setting for name, setting in _SETTINGS[family].items()
            if several_nodes or not setting.several_nodes}


def point_to_point_settings(family: str) -> dict[str, str]:
    """Environment variables that force this MPI's collectives onto point-to-point messages."""
    return dict(_POINT_TO_POINT[family])
