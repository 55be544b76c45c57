"""Packages the chart with the images of a release by digest: release_chart.py DIST REGISTRY WORKER_IMAGE."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
HELM = ROOT / ".cache/kube/helm"


def set_value(text: str, path: list[str], value: str) -> str:
    """The text of a values file with one value replaced, its comments kept. Fails where the value is not there."""
    lines = text.splitlines()
    depth = 0
    for number, line in enumerate(lines):
        match = re.match(r"( *)([A-Za-z]+):", line)
        if not match or len(match[1]) != 2 * depth:
            continue
        if match[2] == path[depth]:
            depth += 1
            if depth == len(path):
                lines[number] = f'{match[1]}{match[2]}: "{value}"'
                return "\n".join(lines) + "\n"
    raise SystemExit(f"release: values.yaml has no {'.'.join(path)}")


def main(dist: Path, registry: str, worker: str) -> None:
    digest = {p.stem: p.read_text().strip() for p in dist.glob("*.digest")}
    values = {
        "image.repository": f"{registry}/varuna-operator",
        "image.digest": digest["varuna-operator"],
        "coordinator.image.repository": f"{registry}/varuna-coordinator",
        "coordinator.image.digest": digest["varuna-coordinator"],
        "worker.image": f"{registry}/{worker}@{digest[worker]}",
    }
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder) / "varuna"
        shutil.copytree(ROOT / "charts/varuna", chart)
        text = (chart / "values.yaml").read_text()
        for path, value in values.items():
            text = set_value(text, path.split("."), value)
        (chart / "values.yaml").write_text(text)
        subprocess.run([HELM, "package", chart, "--destination", dist], check=True)
    (archive,) = dist.glob("varuna-*.tgz")
    rendered = subprocess.run([HELM, "template", "v", archive], check=True, capture_output=True, text=True).stdout
    for image in ("varuna-operator", "varuna-coordinator", worker):
        if f"{registry}/{image}@{digest[image]}" not in rendered:
            raise SystemExit(f"release: the packaged chart does not name {image} by its digest")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
