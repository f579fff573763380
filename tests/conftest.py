"""pytest's hooks: tests marked ``mpi`` run inside mpiexec jobs (see harness.py)."""

import os
import sys
from pathlib import Path

# What somebody measured on this machine must not decide what tests see.
os.environ["SMCOLL_TABLE"] = "off"
os.environ["XDG_CACHE_HOME"] = "/dev/null/none"

# Where it finds no network, this component of Open MPI sleeps for a second in MPI_Init. `smcoll`
# leaves it out of jobs on one machine; this is for what tests start without it.
os.environ.setdefault("OMPI_MCA_btl", "^ofi")

# So that test modules can `import harness`, and the papers' applications, with every import mode,
# outside and inside the jobs.
TESTS = Path(__file__).resolve().parent
for folder in (TESTS.parent / "examples" / "papers", TESTS / "verification", TESTS / "support"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import harness  # noqa: E402
import mpi4py  # noqa: E402
import pretend  # noqa: E402
import pytest  # noqa: E402
from huge_pages import why_none  # noqa: E402
from representatives import representatives  # noqa: E402

if not harness.inside_job():
    # pytest itself is no rank: importing mpi4py.MPI must not initialise MPI here, or else the
    # mpiexec that it starts would be a child of an MPI process.
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true",
                     help="run every test with all its parameters; without it, and without names "
                     "of files or tests, each function that is not marked lengthy runs with those "
                     "in which every value occurs")
    parser.addoption("--slow", action="store_true",
                     help="also run the tests marked slow (other projects' tests, fetched from "
                     "PyPI; large models, ThreadSanitizer and planted bugs)")
    parser.addoption("--heap", action="store_true",
                     help="run everything with arrays in shared heaps, the smallest, too "
                     "(a threshold of 1 byte, scans by shared_heap), without the tests marked "
                     "staged")
    parser.addoption("--nodes", type=int, default=1,
                     help="run the tests marked mpi on so many pretended nodes")


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "mpi(*ranks, deadline=120): runs inside an mpiexec job of each of these rank counts; the "
        "deadline is in seconds",
    )
    config.addinivalue_line(
        "markers", "own_job: of a file whose mpi tests look at what all tests of a process share"
    )
    config.addinivalue_line(
        "markers", "lengthy: takes seconds, and other tests cover the most of it; left out where "
        "representatives stand for all tests"
    )
    config.addinivalue_line(
        "markers", "one_node: about what only ranks of one node have; left out with --nodes"
    )
    config.addinivalue_line(
        "markers", "staged(reason): about what is so only without shared heaps; left out with "
        "--heap, and the reason is printed"
    )
    if config.getoption("heap"):
        # Jobs and programs that tests start inherit it.
        os.environ |= {"SMCOLL_HEAP": "1",
                       "SMCOLL_ALGORITHMS": "scan=shared_heap,exscan=shared_heap",
                       "SMCOLL_TEST_INTERNALS": "heap_threshold=1,direct_size=1"}


def pytest_generate_tests(metafunc):
    marker = metafunc.definition.get_closest_marker("mpi")
    if marker is None:
        return
    counts = [n for n in marker.args if harness.inside_job() in (None, n)]
    if "mpi_ranks" not in metafunc.fixturenames:
        metafunc.fixturenames.append("mpi_ranks")
    metafunc.parametrize("mpi_ranks", counts, ids=[f"{n}ranks" for n in counts])


def stands_for_all(config):
    """Whether this run is of the whole suite, by representatives."""
    return not (config.getoption("all") or config.getoption("slow") or config.option.keyword
                or config.args_source is not pytest.Config.ArgsSource.TESTPATHS
                or config.option.markexpr != "not faults")


def leave_representatives(config, items):
    """Of each function that is not marked lengthy, parameters in which every value of each occurs.
    """
    functions = {}
    for item in items:
        if item.get_closest_marker("lengthy") is not None:
            continue
        functions.setdefault((item.parent, getattr(item, "originalname", item.name)),
                             []).append(item)
    kept = set()
    for group in functions.values():
        # Values may be unhashable, but each is one object in all its combinations.
        cells = [frozenset((name, id(value)) for name, value in item.callspec.params.items())
                 if hasattr(item, "callspec") else frozenset() for item in group]
        kept.update(group[number] for number in representatives(cells))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session, config, items):
    if harness.inside_job() is None and stands_for_all(config):
        leave_representatives(config, items)
    if config.getoption("nodes") > 1:
        for item in items:
            if item.get_closest_marker("one_node") is not None:
                item.add_marker(pytest.mark.skip(reason="about ranks of one node"))
    if config.getoption("heap"):
        for item in items:
            marker = item.get_closest_marker("staged")
            if marker is not None:
                item.add_marker(pytest.mark.skip(reason=f"staged: {marker.args[0]}"))
    if harness.inside_job() is None:
        items[:] = harness.replace_mpi_items(session, items)
        if not config.getoption("slow"):
            for item in items:
                if item.get_closest_marker("slow") is not None:
                    item.add_marker(pytest.mark.skip(reason="slow: needs --slow"))


def pytest_sessionfinish(session):
    harness.kill_jobs()


@pytest.fixture
def huge_pages():
    """A kernel that makes huge pages of shared memory on request."""
    if (problem := why_none()) is not None:
        pytest.skip(f"no huge pages of shared memory: {problem}")


@pytest.fixture
def comm_world():
    """MPI.COMM_WORLD of the job."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


@pytest.fixture
def spread(comm_world, monkeypatch, request):
    """A communicator on pretended nodes; ``request.param``: a name of ``pretend.PLACEMENTS``."""
    import smcoll
    from smcoll.internode import watch

    on_node = pretend.PLACEMENTS[request.param](comm_world.size)
    monkeypatch.setenv("SMCOLL_NODE", str(on_node[comm_world.rank]))
    # Connections that once failed are not tried again by a process: other tests' are no matter.
    monkeypatch.setattr(watch, "_unreachable", [])
    comm = smcoll.Comm(comm_world, smcoll.Config(**pretend.SETTINGS))
    yield comm
    comm.Free()
