"""`make test-image-cuda`: whether a worker in the image for GPUs finds its node's driver, as each platform mounts it. Needs root.

For each platform a root is made as the image's Dockerfile describes it, with a stand-in for the driver where that platform puts it. The
real worker starts in it, loads PyTorch's libraries with CUDA, and these must load the stand-in, which tells from where. It has no GPU:
the worker must say that, and end.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# Where the documents of the platforms say that containers have the driver.
PLATFORMS = {
    "GKE": "usr/local/nvidia/lib64",
    "EKS on Amazon Linux, with CDI": "usr/lib64",
    "AKS, and EKS on Ubuntu": LIBRARIES,
}
DRIVER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
__attribute__((constructor)) static void loaded(void) {
  Dl_info own;
  if (dladdr((void*)loaded, &own)) fprintf(stderr, "driver: %s\n", own.dli_fname);
}
int cuInit(unsigned flags) { return 100; }
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuDeviceGetCount(int* count) { *count = 0; return 0; }
static int none(void) { return 100; }
int cuGetProcAddress_v2(const char* name, void** out, int version, unsigned long long flags, int* status) {
  *out = !strcmp(name, "cuInit") ? (void*)cuInit : !strcmp(name, "cuDriverGetVersion") ? (void*)cuDriverGetVersion : (void*)none;
  if (!strcmp(name, "cuGetProcAddress")) *out = (void*)cuGetProcAddress_v2;
  if (status) *status = 0;
  return 0;
}
int cuGetProcAddress(const char* name, void** out, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(name, out, version, flags, 0);
}
"""


def environment():
    """The variables that the image sets."""
    text = (ROOT / "images/worker-cuda.Dockerfile").read_text()
    lines = re.findall(r"^ENV (.*)$", text, re.MULTILINE)
    pairs = [pair for line in lines for pair in re.findall(r'(?:[^\s"]|"[^"]*")+', line)]
    return {name: value.strip('"') for name, value in (pair.split("=", 1) for pair in pairs)}


def make_root(root, binary):
    """The image's files, as links and copies; the system's libraries are this machine's."""
    for folder in [LIBRARIES, "usr/lib64", "usr/local/bin", "usr/local/nvidia/lib64", "tmp"]:
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "lib").symlink_to("usr/lib")
    (root / "lib64").symlink_to("usr/lib64")
    shutil.copy2("/lib64/ld-linux-x86-64.so.2", root / "usr/lib64", follow_symlinks=True)
    for name in ["c.so.6", "m.so.6", "dl.so.2", "rt.so.1", "util.so.1", "pthread.so.0", "gcc_s.so.1", "stdc++.so.6", "z.so.1"]:
        shutil.copy2(f"/{LIBRARIES}/lib{name}", root / LIBRARIES)
    cuda = (ROOT / ".cache/cuda").resolve()
    for part in ["torch", "nvidia"]:
        shutil.copytree(cuda / part, root / "opt" / part, copy_function=os.link)
    shutil.copy2(binary, root / "usr/local/bin/varuna-worker")


def driver_of(root, driver, folder):
    """Starts the worker with the driver in this folder (None: nowhere); returns from where it was loaded, and what was said."""
    if folder:
        shutil.copy2(driver, root / folder / "libcuda.so.1")
    command = [shutil.which("chroot"), root, "/usr/local/bin/varuna-worker", "--coordinator", "127.0.0.1:1", "--device", "cuda:0"]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    if folder:
        (root / folder / "libcuda.so.1").unlink()
    said = ended.stdout + ended.stderr
    if ended.returncode == 0 or "the driver shows 0 GPUs" not in said:
        sys.exit(f"the worker ended with {ended.returncode} and did not say that there is no GPU:\n{said}")
    loaded = re.search(r"^driver: (.*)$", said, re.MULTILINE)
    return loaded and loaded[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", type=pathlib.Path, default=ROOT / "target/release/varuna-worker")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("root is needed: the worker is started in a root of its own")
    # Beside the libraries, which are many gigabytes: links to them need the same file system.
    with tempfile.TemporaryDirectory(dir=(ROOT / ".cache/cuda").resolve().parent) as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "driver.c").write_text(DRIVER)
        driver = scratch / "libcuda.so.1"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", driver, scratch / "driver.c", "-ldl"], check=True)
        root = scratch / "root"
        make_root(root, arguments.worker)
        for name, folder in PLATFORMS.items():
            found = driver_of(root, driver, folder)
            if found != f"/{folder}/libcuda.so.1" and found != f"/{folder}/libcuda.so.1".replace("/usr/lib", "/lib"):
                sys.exit(f"{name}: the driver is /{folder}/libcuda.so.1, and the worker loaded {found}")
            print(f"{name}: {found}")
        if found := driver_of(root, driver, None):
            sys.exit(f"there is no driver, and the worker loaded {found}")
        print("no driver: the worker says that there is no GPU")


main()
