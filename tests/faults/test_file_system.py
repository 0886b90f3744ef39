"""Which file system a file lies on, read from given lists of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from reverie.errors import NetworkFileSystemError
from reverie.storage import file_system
from reverie.storage.file_system import find_mount, is_network
from reverie.storage.sqlite import Database

MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 0:40 / /mnt/share rw,relatime shared:7 master:1 - nfs4 server:/export rw,vers=4.2,proto=tcp
41 40 0:41 / /mnt/share/local rw,relatime - tmpfs tmpfs rw
42 27 0:42 / /mnt/my\040files rw,relatime - cifs //server/my\040files rw,username=ann
43 27 0:43 / /mnt/a\134b rw - fuse.sshfs ann@server:/home rw
44 27 0:44 / /mnt/over rw - nfs server:/old rw
45 44 0:45 / /mnt/over rw - xfs /dev/vdb rw
46 27 0:46 / /mnt/c rw,noatime - 9p drvfs rw,aname=drvfs;path=C:\134,trans=fd,rfdno=5
47 27 0:47 / /mnt/far rw - 9p server rw,trans=tcp,port=564
48 27 0:48 / /mnt/guest rw - 9p hostshare rw,trans=virtio
49 27 0:49 / /mnt/dav rw - fuse https://server/dav rw,user_id=0
50 27 0:50 / /mnt/ntfs rw - fuseblk /dev/sdb1 rw
51 27 0:51 / /mnt/bucket rw - fuse mountpoint-s3 rw
52 27 0:52 / /mnt/enc rw - fuse.gocryptfs /home/ann/enc rw
53 27 0:53 / /mnt/vm rw - virtiofs share rw
54 27 0:54 /data.db /srv/data.db rw - lustre pool rw
a line that means nothing
"""


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/var/lib/reverie.db", "ext4", False),
        ("/mnt/share/reverie.db", "nfs4", True),
        ("/mnt/share/deep/folder/reverie.db", "nfs4", True),
        ("/mnt/share/local/reverie.db", "tmpfs", False),
        ("/mnt/shareholder/reverie.db", "ext4", False),
        ("/mnt/my files/reverie.db", "cifs", True),
        ("/mnt/a\\b/reverie.db", "fuse.sshfs", True),
        ("/mnt/over/reverie.db", "xfs", False),
        ("/mnt/c/reverie.db", "9p", False),
        ("/mnt/guest/reverie.db", "9p", False),
        ("/mnt/far/reverie.db", "9p", True),
        ("/mnt/dav/reverie.db", "fuse", True),
        ("/mnt/bucket/reverie.db", "fuse", True),
        ("/mnt/ntfs/reverie.db", "fuseblk", False),
        ("/mnt/enc/reverie.db", "fuse.gocryptfs", False),
        ("/mnt/vm/reverie.db", "virtiofs", False),
        ("/srv/data.db", "lustre", True),
        ("/srv/data.db-other", "ext4", False),
    ],
)
def test_the_deepest_and_last_mount_counts(path, kind, network) -> None:
    mount = find_mount(path, MOUNTS)
    assert mount.kind == kind
    assert is_network(mount) is network


@pytest.fixture
def on_nfs(tmp_path: Path, monkeypatch) -> Path:
    """A folder that the system says is on NFS."""
    escaped = str(tmp_path / "a share").replace(" ", r"\040")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / {escaped} rw - nfs4 server:/x rw\n")
    monkeypatch.setattr(file_system, "MOUNTS", mounts)
    return tmp_path / "a share"


def test_a_file_on_a_network_file_system_is_refused(on_nfs: Path) -> None:
    database = Database(str(on_nfs / "reverie.db"))
    with pytest.raises(NetworkFileSystemError, match=r"\(nfs4\).*local disk.*redis://") as refused:
        database.open()
    assert (refused.value.path, refused.value.kind) == (str(on_nfs / "reverie.db"), "nfs4")
    assert refused.value.mount_point == str(on_nfs)
    assert not on_nfs.exists()


def test_unless_it_is_allowed(on_nfs: Path) -> None:
    database = Database(str(on_nfs / "reverie.db"), allow_network_fs=True)
    database.open()
    database.close()


def test_a_link_does_not_hide_it(on_nfs: Path, tmp_path: Path) -> None:
    on_nfs.mkdir()
    (tmp_path / "here").symlink_to(on_nfs)
    with pytest.raises(NetworkFileSystemError):
        Database(str(tmp_path / "here" / "reverie.db")).open()


def test_where_there_is_no_list_nothing_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(file_system, "MOUNTS", tmp_path / "missing")
    database = Database(str(tmp_path / "reverie.db"))
    database.open()
    database.close()
