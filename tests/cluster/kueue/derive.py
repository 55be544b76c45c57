"""Writes crds.yaml from a checkout of Kueue: python3 derive.py KUEUE > crds.yaml

The file has the definitions that the tests need, in the version that is stored. It leaves out descriptions, which are most of the text and have no effect on a server, and the
conversion, which needs Kueue's webhook. Everything that an API server checks is included.
"""
import sys

import yaml

HEADER = """# Definitions of Kueue v0.19.2 (https://github.com/kubernetes-sigs/kueue, commit c3785e520aeeb0e0a93e8a3785a6e46c51502246),
# Copyright The Kubernetes Authors, Apache License 2.0 (see LICENSE). Generated there by controller-gen; changed here by derive.py, which says how.
"""


def plain(schema):
    if isinstance(schema, dict):
        # A property may be called description; its value is a schema.
        return {
            key: plain(value)
            for key, value in schema.items()
            if not (key == "description" and isinstance(value, str))
        }
    return [plain(item) for item in schema] if isinstance(schema, list) else schema


print(HEADER, end="")
for name in ["workloads", "resourceflavors", "clusterqueues", "localqueues", "workloadpriorityclasses"]:
    with open(f"{sys.argv[1]}/config/components/crd/bases/kueue.x-k8s.io_{name}.yaml") as file:
        definition = plain(yaml.safe_load(file))
    versions = definition["spec"]["versions"]
    definition["spec"]["versions"] = [version for version in versions if version["storage"]]
    print("---")
    print(yaml.dump(definition, width=10000, default_flow_style=None), end="")
