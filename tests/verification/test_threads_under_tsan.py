"""ThreadSanitizer has nothing to say about the protocol, and reports what is planted (--slow)."""

import platform

import pytest
import threads_under_tsan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(threads_under_tsan.library() is None, reason="no gcc with libtsan"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="tried on x86-64 only"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy of smcoll built for ThreadSanitizer."""
    folder = tmp_path_factory.mktemp("tsan") / "smcoll"
    threads_under_tsan.copy_and_build(folder)
    return folder


def test_no_race_and_no_wrong_data(folder):
    problems, reports = threads_under_tsan.run(folder, 1000, range(1, 7))
    assert problems == []
    assert reports == []


@pytest.mark.parametrize("name", threads_under_tsan.PLANTED)
def test_a_planted_race_is_reported(folder, name):
    problems, reports = threads_under_tsan.check_planted(folder, name, 1000)
    assert reports or problems
