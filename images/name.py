"""Gives the image of an OCI archive its full name, as containerd (and so kind) takes it: name.py ARCHIVE NAME."""

import io
import json
import os
import sys
import tarfile


def named(index: bytes, name: str) -> bytes:
    """The archive's index with the image's name."""
    document = json.loads(index)
    for manifest in document["manifests"]:
        manifest.setdefault("annotations", {})["io.containerd.image.name"] = name
    return json.dumps(document).encode()


def main(archive: str, name: str) -> None:
    partial = f"{archive}.partial"
    # Member by member: an image for GPUs has more bytes than many a machine has memory.
    with tarfile.open(archive) as old, tarfile.open(partial, "w") as new:
        for member in old:
            content = old.extractfile(member) if member.isfile() else None
            if member.name == "index.json":
                index = named(content.read(), name)
                member.size, content = len(index), io.BytesIO(index)
            new.addfile(member, content)
    os.replace(partial, archive)


if __name__ == "__main__":
    main(*sys.argv[1:])
