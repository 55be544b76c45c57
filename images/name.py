"""Gives the image of an OCI archive its full name, as containerd (and so kind) takes it: name.py ARCHIVE NAME."""

import io
import json
import sys
import tarfile


def main(archive: str, name: str) -> None:
    with tarfile.open(archive) as tar:
        members = [(m, tar.extractfile(m).read() if m.isfile() else None) for m in tar.getmembers()]
    with tarfile.open(archive, "w") as tar:
        for member, content in members:
            if member.name == "index.json":
                index = json.loads(content)
                for manifest in index["manifests"]:
                    manifest.setdefault("annotations", {})["io.containerd.image.name"] = name
                content = json.dumps(index).encode()
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content) if content is not None else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
