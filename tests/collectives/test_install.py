"""install/uninstall, wrap, and the communicators that are made from a smcoll one."""

from __future__ import annotations

import pickle
import subprocess
import textwrap

import numpy as np
import pytest
from mpi4py import MPI
from programs import run_ranks

import smcoll
from smcoll.launch import launch

pytestmark = pytest.mark.own_job


def allreduce(comm, count=4):
    total = np.zeros(count)
    comm.Allreduce(np.full(count, comm.Get_rank() + 1.0), total)
    assert (total == comm.Get_size() * (comm.Get_size() + 1) / 2).all()


def calls(comm) -> int:
    return sum(row["calls"] for row in comm.stats() if row["path"] != "MPI")


@pytest.mark.mpi(1, 2, 3)
def test_install_and_uninstall(comm_world):
    original = MPI.COMM_WORLD
    assert not isinstance(original, smcoll.Comm)
    smcoll.install()
    try:
        world = MPI.COMM_WORLD
        assert isinstance(world, smcoll.Comm)
        assert world == original and world.handle == original.handle
        allreduce(world)
        smcoll.install()
        assert MPI.COMM_WORLD is world
        if world.size > 1:
            assert calls(world) == 1
        # What programs do with it.
        assert world.bcast({"a": 1} if world.rank == 0 else None) == {"a": 1}
        assert len(world.allgather(world.rank)) == world.size
        assert MPI.COMM_WORLD.Get_group().Get_size() == world.size
    finally:
        smcoll.uninstall()
    assert MPI.COMM_WORLD is original
    smcoll.uninstall()
    assert MPI.COMM_WORLD is original
    allreduce(world)


@pytest.mark.mpi(2)
def test_install_disabled(comm_world):
    original = MPI.COMM_WORLD
    smcoll.install(smcoll.Config(disable=True))
    try:
        allreduce(MPI.COMM_WORLD)
        assert MPI.COMM_WORLD is original or MPI.COMM_WORLD.engine is None
    finally:
        smcoll.uninstall()


@pytest.mark.mpi(2, 3)
def test_wrap_twice_shares_one_sequence(comm_world):
    """Two objects with one handle share one engine, so their calls may be mixed."""
    plain = comm_world.Dup()
    one = smcoll.wrap(plain)
    two = smcoll.wrap(plain)
    assert one == two == plain
    for turn in range(50):
        # Ranks use different objects for the same call.
        allreduce(one if (turn + comm_world.rank) % 2 else two, 1 + turn * 30)
    assert calls(one) == calls(two) == 50
    assert one.engine is two.engine
    assert smcoll.wrap(one) is one
    third = smcoll.wrap(MPI.Comm.fromhandle(plain.handle))
    allreduce(third)
    assert calls(one) == 51
    one.Free()


@pytest.mark.mpi(2)
def test_wrap_after_the_handle_was_freed_and_used_again(comm_world):
    """A reused handle value never meets an old engine."""
    handles = set()
    for turn in range(20):
        comm = smcoll.wrap(comm_world.Dup())
        handles.add(comm.handle)
        allreduce(comm, 10 + turn)
        assert calls(comm) == 1
        comm.Free()
    assert len(handles) < 20, "the handles were never reused: this test has seen nothing"


@pytest.mark.mpi(2, 3)
def test_wrap_keeps_the_kind(comm_world):
    cart = comm_world.Create_cart([comm_world.size], periods=[True])
    wrapped = smcoll.wrap(cart)
    assert isinstance(wrapped, MPI.Cartcomm) and isinstance(wrapped, smcoll.Cartcomm)
    assert wrapped.Get_coords(comm_world.rank) == [comm_world.rank]
    assert wrapped.Shift(0, 1) == cart.Shift(0, 1)
    allreduce(wrapped)
    assert calls(wrapped) == 1
    cart.Free()


@pytest.mark.mpi(2, 3)
def test_dup_of_a_smcoll_communicator(comm_world):
    """A duplicate has its own sequence and segment, and its parent's settings."""
    config = smcoll.Config(algorithms="allreduce=recursive_doubling", segment_size=4096)
    with smcoll.Comm(comm_world, config) as parent:
        allreduce(parent)
        for make in (parent.Dup, parent.Clone):
            child = make()
            assert isinstance(child, smcoll.Comm)
            allreduce(child, 1000)
            assert calls(child) == 1 and calls(parent) == 1
            assert child.engine is not parent.engine
            # Over several nodes it says where that holds.
            assert "recursive_doubling" in str(child.explain("allreduce", nbytes=8))
            child.Free()
        allreduce(parent)


@pytest.mark.mpi(2)
def test_idup(comm_world):
    with smcoll.Comm(comm_world) as parent:
        child, request = parent.Idup()
        request.Wait()
        allreduce(child)
        child.Free()
        allreduce(parent)


@pytest.mark.mpi(3)
def test_split_and_the_rest_of_mpi4py(comm_world):
    with smcoll.Comm(comm_world) as comm:
        rank, size = comm.rank, comm.size
        allreduce(comm)
        part = comm.Split(rank % 2, rank)
        allreduce(part)
        with smcoll.Comm(part) as fast:
            allreduce(fast)
        part.Free()
        assert comm.Split(MPI.UNDEFINED) == MPI.COMM_NULL
        everyone = np.zeros(size, "i")
        comm.Allgather(np.array([rank], "i"), everyone)
        assert everyone.tolist() == list(range(size))
        request = comm.Ibarrier()
        allreduce(comm)
        request.Wait()
        assert comm.allreduce(rank) == size * (size - 1) // 2
        comm.Set_name("a name")
        assert comm.Get_name() == "a name"
        partner = comm.sendrecv(rank, dest=(rank + 1) % size, source=(rank - 1) % size)
        assert partner == (rank - 1) % size
        total = np.zeros(1)
        comm.Scan(np.ones(1), total)
        assert total[0] == rank + 1


@pytest.mark.mpi(2)
def test_from_a_smcoll_communicator(comm_world):
    with smcoll.Comm(comm_world) as outer, smcoll.Comm(outer) as inner:
        allreduce(inner)
        allreduce(outer)
        assert inner.engine is not outer.engine


@pytest.mark.mpi(2)
def test_attributes_and_comparison(comm_world):
    with smcoll.Comm(comm_world) as comm:
        assert MPI.Comm.Compare(comm, comm_world) == MPI.CONGRUENT
        assert comm != comm_world
        keyval = MPI.Comm.Create_keyval()
        comm.Set_attr(keyval, "value")
        assert comm.Get_attr(keyval) == "value"
        MPI.Comm.Free_keyval(keyval)


@pytest.mark.mpi(2)
def test_pickle_of_an_installed_world(comm_world):
    smcoll.install()
    try:
        copy = pickle.loads(pickle.dumps(MPI.COMM_WORLD))
        assert copy == MPI.COMM_WORLD
    finally:
        smcoll.uninstall()


PROGRAM = """
    import sys
    import smcoll
    smcoll.install()
    from mpi4py import MPI
    from mpi4py.MPI import COMM_WORLD as comm
    import numpy as np
    total = np.zeros(3)
    comm.Allreduce(np.ones(3), total)
    assert (total == comm.size).all()
    copy = comm.Dup()
    copy.Allreduce(np.ones(3), total)
    sys.stdout.write(f"types {type(comm).__module__} {type(copy).__module__}\\n")
"""


def test_program_that_installs():
    result = run_ranks(3, PROGRAM)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("smcoll") == 6
    assert result.stderr == ""


def test_program_disabled_by_environment():
    result = run_ranks(2, PROGRAM, environment={"SMCOLL_DISABLE": "1"})
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("mpi4py") == 4


STAR = """
    import sys
    from mpi4py.MPI import *
    from mpi4py import MPI
    import numpy as np
    total = np.zeros(3)
    COMM_WORLD.Allreduce(np.ones(3), total)
    assert (total == COMM_WORLD.size).all()
    assert COMM_WORLD is MPI.COMM_WORLD and COMM_SELF is MPI.COMM_SELF
    assert "smcoll" not in type(MPI.__spec__.loader).__module__
    assert MPI.__spec__.loader is MPI.__loader__
    assert not any("smcoll" in type(finder).__module__ for finder in sys.meta_path)
    types = [type(comm).__module__ for comm in
             (COMM_WORLD, COMM_SELF, COMM_WORLD.Split(), COMM_SELF.Create_cart([1]))]
    sys.stdout.write(f"types {' '.join(types)}\\n")
"""


def test_names_copied_by_an_import_after_install():
    result = run_ranks(2, "import smcoll; smcoll.install()\n" + textwrap.dedent(STAR), alone=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("smcoll") == 8


@pytest.mark.lengthy
@pytest.mark.parametrize("module", [False, True], ids=["file", "module"])
@pytest.mark.parametrize("disabled", [False, True], ids=["", "disabled"])
def test_run_of_a_program_that_copies_names(tmp_path, module, disabled):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(textwrap.dedent(STAR))
    program = ["-m", "package"] if module else [str(package / "__main__.py")]
    result = launch.run(2, launch.own_command("run", *program), 60, capture_output=True, text=True,
                        cwd=tmp_path, environment={"SMCOLL_DISABLE": str(int(disabled))},
                        stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("mpi4py" if disabled else "smcoll") == 8


INITIALISES_ITSELF = """
    import sys
    import mpi4py
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI
    import numpy as np
    assert not MPI.Is_initialized()
    sys.stdout.write(f"type {type(MPI.COMM_WORLD).__module__}\\n")
    assert MPI.COMM_WORLD and MPI.COMM_WORLD != MPI.COMM_SELF
    MPI.COMM_WORLD.free()
    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    for comm in (MPI.COMM_WORLD, MPI.COMM_WORLD.Dup()):
        total = np.zeros(1000)
        comm.Allreduce(np.ones(1000), total)
        assert (total == comm.size).all()
        assert comm.size == 1 or sum(row["calls"] for row in comm.stats()
                                     if row["path"] == "shared memory") == 1
    MPI.Finalize()
    sys.stdout.write(f"end {MPI.Is_finalized()}\\n")
"""


@pytest.mark.lengthy
def test_run_of_a_program_that_initialises_mpi_itself(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(INITIALISES_ITSELF))
    for environment in ({}, {"SMCOLL_VERBOSE": "1"}, {"SMCOLL_EAGER": "1"}):
        result = launch.run(2, launch.own_command("run", str(program)), 60, capture_output=True,
                            text=True, environment=environment, stdin=subprocess.DEVNULL)
        assert result.returncode == 0, result.stderr
        assert result.stdout.count("type smcoll") == result.stdout.count("end True") == 2
        assert "Traceback" not in result.stderr


HOOK = """
    import sys
    import smcoll
    before = list(sys.meta_path)
    smcoll.install()
    smcoll.install()
    assert len(sys.meta_path) == len(before) + 1
    smcoll.uninstall()
    smcoll.uninstall()
    assert sys.meta_path == before
    smcoll.install(smcoll.Config(disable=True))
    assert sys.meta_path == before
    assert "mpi4py.MPI" not in sys.modules
    smcoll.install()
    import copyreg
    import mpi4py.MPI as MPI
    assert type(MPI.COMM_WORLD) is smcoll.Comm
    assert MPI.Intracomm in copyreg.dispatch_table
    smcoll.uninstall()
    assert type(MPI.COMM_WORLD) is type(MPI.COMM_SELF) is MPI.Intracomm
    assert MPI.Intracomm not in copyreg.dispatch_table
    print("fine")
"""


def test_install_and_uninstall_before_the_import():
    result = run_ranks(2, HOOK, alone=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("fine") == 2


def test_a_bad_setting_is_said_at_once():
    source = "import smcoll\nsmcoll.install()\nprint('not reached')"
    result = run_ranks(1, source, environment={"SMCOLL_SEGMENTS": "many"}, alone=True)
    assert result.returncode != 0 and "SMCOLL_SEGMENTS" in result.stderr


@pytest.mark.mpi(2)
def test_settings_of_install(comm_world):
    """They hold for COMM_WORLD and what is made from it, unless somebody used it before."""
    made = [MPI.COMM_WORLD.Split(), MPI.COMM_SELF.Dup()]
    assert all(type(comm) is MPI.Intracomm for comm in made)
    known = smcoll.wrap(MPI.COMM_WORLD).explain("barrier").path
    smcoll.install(smcoll.Config(segments=3, eager=True))
    try:
        assert type(MPI.COMM_WORLD) is type(MPI.COMM_SELF) is smcoll.Comm
        assert MPI.COMM_WORLD.explain("barrier").path == known
        alone = MPI.COMM_SELF.Dup()
        assert alone.engine is None
        alone.Barrier()
        allreduce(alone)
        alone.Free()
    finally:
        smcoll.uninstall()
    for comm in made:
        comm.Free()


VERBOSE = """
    import smcoll
    smcoll.install()
    from mpi4py import MPI
    import numpy as np
    world = MPI.COMM_WORLD
    for _ in range(10):
        world.Allreduce(np.ones(4), np.empty(4))
    world.Bcast(np.ones(1, "f2"))
    world.Reduce(np.ones(2, "f2"), np.empty(2, "f2"))
    child = world.Dup()
    child.Set_name("child")
    child.Barrier()
    child.Free()
    dropped = world.Split()
    dropped.Barrier()
    del dropped
    world.Split(world.rank).Barrier()
    world.Split().Free()
    MPI.COMM_SELF.Barrier()
"""


def test_verbose_prints_communicators_and_a_table():
    # The table names the algorithms of arrays that are staged.
    result = run_ranks(2, VERBOSE, environment={"SMCOLL_VERBOSE": "1", "SMCOLL_HEAP": "0"},
                       alone=True)
    assert result.returncode == 0, result.stderr
    lines = result.stderr.splitlines()
    assert all(line.startswith("smcoll: ") for line in lines)
    announced = sorted(line for line in lines if line.startswith("smcoll: communicator"))
    assert announced == sorted([
        "smcoll: communicator MPI_COMM_WORLD of 2 ranks: shared memory",
        "smcoll: communicator child of 2 ranks: shared memory",
        "smcoll: communicator of 2 ranks: shared memory",
        "smcoll: communicator of 1 rank (0 of MPI_COMM_WORLD): one rank",
        "smcoll: communicator of 1 rank (1 of MPI_COMM_WORLD): one rank",
        "smcoll: communicator MPI_COMM_SELF of 1 rank (0 of MPI_COMM_WORLD): one rank",
        "smcoll: communicator MPI_COMM_SELF of 1 rank (1 of MPI_COMM_WORLD): one rank",
    ])
    heading, *table = [line.split(maxsplit=6)[1:] for line in lines if line not in announced]
    assert heading[:4] == ["calls", "of", "rank", "0"]
    assert table[0][:5] == ["collective", "calls", "bytes", "seconds", "path"]
    rows = {(row[0], tuple(row[4:])): row[1:3] for row in table[1:]}
    assert rows["allreduce", ("shared", "memory  all_read")] == ["10", "320"]
    assert rows["barrier", ("shared", "memory  all_read")] == ["2", "0"]
    assert rows["barrier", ("MPI", "one rank")] == ["2", "-"]
    assert rows["reduce", ("shared", "memory  fan_in")] == ["1", "4"]


def test_silent_without_verbose():
    result = run_ranks(2, VERBOSE, alone=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


AT_EXIT = """
    import atexit
    import sys
    import smcoll
    from mpi4py import MPI
    # In one piece: the other rank writes at the same time.
    atexit.register(lambda: sys.stdout.write(f"sum {comm.allreduce(1)}\\n"))
    comm = smcoll.Comm(MPI.COMM_WORLD)
    comm.Barrier()
    MPI.COMM_WORLD.Barrier()
"""


def test_exit_handlers_of_the_program_can_use_communicators():
    result = run_ranks(2, AT_EXIT, alone=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("sum 2") == 2
