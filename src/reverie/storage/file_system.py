"""Finds the file system of a file, because SQLite's locks and shared memory do not work across machines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from reverie.errors import NetworkFileSystemError

__all__ = ["Mount", "find_mount", "is_network", "refuse_network_file_system"]

MOUNTS = Path("/proc/self/mountinfo")
"""Only Linux has this file; on other systems no file system is known, and none is refused."""
NETWORK = frozenset(
    {
        "afs", "auristorfs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gpfs", "lustre",
        "ncpfs", "nfs", "nfs4", "orangefs", "panfs", "pvfs2", "smb3", "smbfs",
    }
)  # fmt: skip
NETWORK_FUSE = frozenset(
    {
        "blobfuse", "blobfuse2", "ceph", "ceph-fuse", "curlftpfs", "davfs", "davfs2", "gcsfuse", "glusterfs",
        "goofys", "gvfsd-fuse", "juicefs", "lizardfs", "mfs", "moosefs", "mountpoint-s3", "objectivefs",
        "rclone", "s3fs", "seaweedfs", "smbnetfs", "sshfs", "wdfs",
    }
)  # fmt: skip
"""Names after `fuse.` that are network file systems; most others are local."""
NETWORK_9P = frozenset({"tcp", "rdma"})
"""Transports of 9p that leave the machine. Sandboxes, WSL and virtual machines reach the disk of their own
host by other transports (fd, virtio, xen, unix)."""


class Mount(NamedTuple):
    """One line of the list of mounts."""

    point: str
    kind: str
    source: str
    options: tuple[str, ...]


def refuse_network_file_system(path: str) -> None:
    """Raise `NetworkFileSystemError` if the file is, or would be, on another machine."""
    try:
        text = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    mount = find_mount(path, text)
    if mount is not None and is_network(mount):
        raise NetworkFileSystemError(path, mount.kind, mount.point)


def find_mount(path: str, mounts: str) -> Mount | None:
    """Find the mount of an absolute path without links: the deepest one, and of several there the last."""
    found: Mount | None = None
    for line in mounts.splitlines():
        mount = _read(line)
        if mount is not None and _holds(mount.point, path):
            found = mount if found is None or len(mount.point) >= len(found.point) else found
    return found


def is_network(mount: Mount) -> bool:
    """Whether the files of a mount are on another machine, as far as the mount tells."""
    kind, _, program = mount.kind.partition(".")
    if kind == "9p":
        return any(f"trans={transport}" in mount.options for transport in NETWORK_9P)
    if kind == "fuse":
        # davfs2 and others name no program; their source is an address
        return program in NETWORK_FUSE or mount.source in NETWORK_FUSE or "://" in mount.source
    return kind in NETWORK


def _read(line: str) -> Mount | None:
    before, separator, after = line.partition(" - ")
    left, right = before.split(" "), after.split(" ")
    if not separator or len(left) < 5 or len(right) < 2:
        return None
    options = right[2].split(",") if len(right) > 2 else []
    return Mount(_plain(left[4]), right[0], _plain(right[1]), tuple(options))


def _holds(point: str, path: str) -> bool:
    return point in {"/", path} or path.startswith(f"{point}/")


def _plain(field: str) -> str:
    r"""Undo the kernel's escapes in a field: `\040` is a space."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
