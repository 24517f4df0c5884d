"""Files are written whole, below their folder, and never over somebody else's."""

import subprocess
from pathlib import Path

import pytest

from toolkit.deploy.site import Rendered
from toolkit.deploy.write import SUMS, templates, write
from toolkit.errors import ToolkitError

ONE = Rendered(path="a/one.conf", text="one\n")
KEYS = Rendered(path="keys.env", text="K=\n", mode=0o600)


def test_files_stand_below_the_folder_with_their_modes(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    assert write([ONE, KEYS], out) == [out / "a/one.conf", out / "keys.env"]
    assert (out / "a/one.conf").read_text() == "one\n"
    modes = [(out / each.path).stat().st_mode & 0o777 for each in (ONE, KEYS)]
    assert modes == [0o644, 0o600]
    assert sorted(each.name for each in out.rglob("*") if each.is_file()) == sorted(
        ["one.conf", "keys.env", SUMS]
    )


def test_sha256sum_knows_what_was_written(tmp_path: Path) -> None:
    write([ONE, KEYS], tmp_path)
    told = subprocess.run(
        ["sha256sum", "--check", SUMS], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert told.stdout == "a/one.conf: OK\nkeys.env: OK\n"


def test_what_was_written_before_is_replaced(tmp_path: Path) -> None:
    write([ONE], tmp_path)
    assert write([ONE], tmp_path) == []
    newer = Rendered(path=ONE.path, text="two\n")
    assert write([newer], tmp_path) == [tmp_path / ONE.path]
    assert (tmp_path / ONE.path).read_text() == "two\n"


@pytest.mark.parametrize(("first", "what"), [(True, "was changed"), (False, "not from `deploy`")])
def test_somebody_else_s_file_stays_and_nothing_else_is_written(
    tmp_path: Path, first: bool, what: str
) -> None:
    if first:
        write([Rendered(path="keys.env", text="older\n")], tmp_path)
    (tmp_path / "keys.env").write_text("mine\n")
    with pytest.raises(ToolkitError, match=what):
        write([ONE, KEYS], tmp_path)
    assert (tmp_path / "keys.env").read_text() == "mine\n"
    assert not (tmp_path / ONE.path).exists()
    write([ONE, KEYS], tmp_path, force=True)
    assert (tmp_path / "keys.env").read_text() == "K=\n"


def test_a_file_that_is_the_same_by_chance_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "keys.env").write_text("K=\n")
    assert write([KEYS], tmp_path) == []


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", ""])
def test_no_file_leaves_the_folder(tmp_path: Path, path: str) -> None:
    with pytest.raises(ToolkitError, match="does not lie below"):
        write([Rendered(path=path, text="")], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_nor_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").symlink_to(tmp_path)
    with pytest.raises(ToolkitError, match="does not lie below"):
        write([ONE], tmp_path / "out", force=True)
    assert not (tmp_path / "one.conf").exists()


def test_a_folder_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ToolkitError, match=r"can't be written: (not a directory|file exists)"):
        write([ONE], tmp_path / "out")


def test_a_file_cut_short_is_never_seen(tmp_path: Path) -> None:
    write([ONE], tmp_path)
    # the folder of the second is in the way as a file: the first stays as it was
    (tmp_path / "b").write_text("a file")
    with pytest.raises(ToolkitError):
        write([Rendered(path="b/two", text="x")], tmp_path)
    assert not list(tmp_path.rglob("*.part"))


def test_the_package_brings_templates_for_each_kind() -> None:
    assert {"nginx.conf.j2", "systemd.service.j2"} <= set(templates())
