"""Packs the NIC as a Python wheel: FOLDER (of the tarball), MODULES (a folder), VERSION, WHEEL. The same files give the same bytes."""

import base64
import hashlib
import sys
import zipfile

FILES = ["softnic", "libsoftnic_preload.so", "LICENSE", "parts.spdx.json"]
folder, modules, version, wheel = sys.argv[1:]
info = f"softnic-{version}.dist-info"
record = []


def add(archive, name, data, mode=0o644):
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.external_attr = (0o100000 | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    record.append(f"{name},sha256={digest},{len(data)}")


def read(path):
    with open(path, "rb") as file:
        return file.read()


with zipfile.ZipFile(wheel, "w") as archive:
    for name in ["softnic.py", "softnic_pytest.py"]:
        add(archive, name, read(f"{modules}/{name}"))
    for name in FILES:
        add(archive, f"softnic_files/{name}", read(f"{folder}/{name}"), 0o755 if name == "softnic" else 0o644)
    add(
        archive,
        f"{info}/METADATA",
        f"""Metadata-Version: 2.1
Name: softnic
Version: {version}
Summary: A software ConnectX for RDMA programs, and a pytest fixture that starts programs on it
License: Apache-2.0
Requires-Python: >=3.8
Provides-Extra: test
Requires-Dist: pytest; extra == "test"
""".encode(),
    )
    add(archive, f"{info}/WHEEL", b"Wheel-Version: 1.0\nGenerator: cargo-xtask-dist\nRoot-Is-Purelib: false\nTag: py3-none-manylinux_2_31_x86_64\n")
    entry_points = b"[console_scripts]\nsoftnic = softnic:main\n\n[pytest11]\nsoftnic = softnic_pytest\n"
    add(archive, f"{info}/entry_points.txt", entry_points)
    entry = zipfile.ZipInfo(f"{info}/RECORD", (1980, 1, 1, 0, 0, 0))
    archive.writestr(entry, "\n".join([*record, f"{info}/RECORD,,", ""]))
