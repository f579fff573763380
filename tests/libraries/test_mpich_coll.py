"""MPICH's own C tests of collectives, with and without smcoll under them (``--slow``; needs apt).

They come with Debian's source package of mpich. What passes without smcoll must pass with it.
"""

from __future__ import annotations

import mpich_coll
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """The tests, fetched and compiled."""
    folder = tmp_path_factory.mktemp("mpich")
    try:
        return mpich_coll.Compiled(mpich_coll.fetch(folder), folder / "build")
    except mpich_coll.Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("ranks", mpich_coll.RANKS)
def test_mpichs_own_tests(compiled, capsys, monkeypatch, ranks):
    plain, _ = mpich_coll.run_all(compiled, ranks, libraries=False)
    fine = [name for name, outcome in plain.items() if outcome["passed"]]
    with capsys.disabled():
        print(f"\n{ranks} ranks: {len(fine)} of {len(plain)} files pass without smcoll, not "
              f"{sorted(set(plain) - set(fine))}")
    assert len(fine) > len(plain) / 2
    # Most of their communicators have few calls.
    monkeypatch.setenv("SMCOLL_TEST_LIBRARIES_AFTER", "0")
    # Those that fail without it show nothing, and some of them hang.
    ours, served = mpich_coll.run_all(compiled, ranks, libraries=True, tests=fine)
    with capsys.disabled():
        print(f"{ranks} ranks: with smcoll {sum(one['passed'] for one in ours.values())} pass; "
              f"calls: {served}")
    added = {name: outcome["why"] for name, outcome in ours.items() if not outcome["passed"]}
    assert not added, "\n".join(f"{name}: {why}" for name, why in added.items())
